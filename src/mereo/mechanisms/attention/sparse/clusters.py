"""Clusters of tokens by online k-means, a set of centroids for each head, and their balanced membership.

Source: Roy, Saffar, Vaswani, Grangier 2021, arXiv:2003.05997, section 4.1 and algorithm 1.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core.kernels.transforms import inside_backward
from mereo.core.squash import accumulation_type
from mereo.errors import check_positive, check_probability

SMOOTHING = 1e-5
"""Added to every count, so that an empty cluster does not divide by zero."""


def normalised(x: Tensor) -> Tensor:
    """Mean 0 and variance 1 over the last axis, without a learned scale: vectors of length sqrt(dim).

    Shapes: (..., dim) -> the same.
    """
    return F.layer_norm(x, x.shape[-1:])


class Clusters(nn.Module):
    """Centroids that follow the tokens of a head by exponential averages of k-means, without gradients.

    a(n) = argmin_c |x_n - mu_c|,   N_c = #{n : a(n) = c},   S_c = sum of x_n with a(n) = c

    count_c <- decay count_c + (1 - decay) N_c,   sum_c <- decay sum_c + (1 - decay) S_c

    mu_c = sum_c / ((count_c + eps) / (sum count + k eps) sum count)

    Args:
        heads: each has centroids of its own.
        clusters: number of centroids k.
        dim: size of a token in a head.
        decay: how much of the averages stays in a step of training.

    Shapes: buffers centroids and sums (heads, clusters, dim), counts (heads, clusters).

    Deviates: counts start at 1, so that the sums, which start at the centroids, are divided by the right counts; in
        the released code counts start at 0, and the first step multiplies the centroids by a factor of hundreds.

    Reference: arXiv:2003.05997, section 4.1. Centroids start as normal vectors, normalised like the tokens.
    """

    centroids: Tensor
    counts: Tensor
    sums: Tensor

    def __init__(self, heads: int, clusters: int, dim: int, decay: float = 0.999) -> None:
        super().__init__()
        check_positive(heads=heads, clusters=clusters, dim=dim)
        check_probability(decay=decay)
        self.decay, self._before = decay, torch.empty(0)
        self.register_buffer("centroids", torch.empty(heads, clusters, dim))
        self.register_buffer("counts", torch.empty(heads, clusters))
        self.register_buffer("sums", torch.empty(heads, clusters, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: normalised normal centroids, counts of 1, and sums that belong to them."""
        with torch.no_grad():
            self.centroids.copy_(normalised(torch.randn_like(self.centroids)))
            self.counts.fill_(1)
            self.sums.copy_(self.centroids)

    def current(self) -> Tensor:
        """The centroids of this pass; a pass that is computed again for its gradients takes its former ones."""
        return self._before if self._before.numel() and inside_backward() else self.centroids

    @torch.no_grad()
    def assigned(self, x: Tensor, nearest: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """How many tokens belong to each cluster, and their sums; tokens that are not finite belong to none.

        Shapes: x (batch, heads, tokens, dim), nearest int64 (batch, heads, tokens), mask bool (batch, tokens)
            -> (heads, clusters), (heads, clusters, dim).
        """
        heads, clusters, dim = self.centroids.shape
        wide = x.detach().to(torch.promote_types(accumulation_type(x), accumulation_type(self.centroids)))
        counted = wide.isfinite().all(-1)
        if mask is not None:
            counted = counted & mask.unsqueeze(1)
        wide = torch.where(counted.unsqueeze(-1), wide, 0)
        first = clusters * torch.arange(heads, device=x.device).view(1, -1, 1)
        places = (nearest + first).flatten()
        counts = wide.new_zeros(heads * clusters).index_add_(0, places, counted.flatten().to(wide.dtype))
        sums = wide.new_zeros(heads * clusters, dim).index_add_(0, places, wide.reshape(-1, dim))
        return counts.view(heads, clusters), sums.view(heads, clusters, dim)

    @torch.no_grad()
    def follow(self, counts: Tensor, sums: Tensor) -> None:
        """One step of the averages, with the counts and sums of `assigned`; processes of a group add theirs.

        A pass that a gradient checkpoint computes again changes nothing.
        """
        if inside_backward():
            return
        self._before = self.centroids.clone()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            for value in (counts, sums):
                torch.distributed.all_reduce(value)
        wide, kept = counts.dtype, self.decay
        count = kept * self.counts.to(wide) + (1 - kept) * counts
        total = kept * self.sums.to(wide) + (1 - kept) * sums
        everything = count.sum(-1, keepdim=True)
        smooth = (count + SMOOTHING) / (everything + count.shape[-1] * SMOOTHING) * everything
        self.counts.copy_(count)
        self.sums.copy_(total)
        self.centroids.copy_(total / smooth.unsqueeze(-1))

    def commitment(self, x: Tensor, nearest: Tensor, mask: Tensor | None = None) -> Tensor:
        """The mean squared distance of a token from the centroid it belongs to; its gradient moves tokens only.

        Shapes: x (batch, heads, tokens, dim), nearest int64 (batch, heads, tokens), mask bool (batch, tokens) -> ().
        """
        heads, clusters, _ = self.centroids.shape
        first = clusters * torch.arange(heads, device=x.device).view(1, -1, 1)
        own = self.current().detach().flatten(0, 1)[nearest + first]
        apart = (x.to(accumulation_type(x)) - own).square().sum(-1)
        if mask is None:
            return apart.mean()
        there = mask.unsqueeze(1).expand_as(apart)
        return torch.where(there, apart, 0).sum() / there.sum().clamp(min=1)

    def extra_repr(self) -> str:
        heads, clusters, dim = self.centroids.shape
        return f"{heads}, clusters={clusters}, dim={dim}, decay={self.decay}"
