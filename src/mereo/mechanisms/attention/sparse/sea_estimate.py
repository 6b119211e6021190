"""The estimator of SEA: attention by random features, and a decoder that predicts the compressed map."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core.kernels.linear_scan import Scan, linear_scan
from mereo.core.squash import accumulation_type

REDRAW = 1000
"""Training steps after which the random features are drawn again."""


def orthogonal_features(count: int, dim: int) -> Tensor:
    """Random directions, orthogonal in blocks of `dim`, with lengths of Gaussian vectors: (count, dim).

    Reference: arXiv:2009.14794, section 2.4.
    """
    blocks = [torch.linalg.qr(torch.randn(dim, dim))[0] for _ in range(-(-count // dim))]
    return torch.cat(blocks)[:count] * torch.randn(count, dim).norm(dim=1, keepdim=True)


class KernelAttention(nn.Module):
    """Attention in time linear in the tokens: phi(q) (phi(k)^T v) / (phi(q) sum phi(k)), with random features phi.

    Positive features of the softmax, exp(w x - |x|^2 / 2), for queries that see all keys; max(w x, 0) for causal ones.

    Args:
        dim: of queries and keys.
        features: how many; int(dim ln(dim)) by default.
        causal: whether a query sees only itself and what comes before it.

    Shapes: q, k (batch, heads, tokens, dim), v (batch, heads, tokens, pose), valid bool (batch, tokens)
        -> (batch, heads, tokens, pose).

    Reference: arXiv:2009.14794, eq. 5 and section 2.3.
    """

    projection: Tensor
    steps: Tensor

    def __init__(self, dim: int, features: int | None = None, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        features = max(int(dim * math.log(dim)), 1) if features is None else features
        self.register_buffer("projection", orthogonal_features(features, dim))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def redraw(self) -> None:
        """Draw the features again."""
        self.projection.copy_(orthogonal_features(*self.projection.shape))

    def _count(self) -> None:
        if self.training and not torch.compiler.is_compiling():
            self.steps += 1
            if int(self.steps) % REDRAW == 0:
                self.redraw()

    def features(self, x: Tensor, valid: Tensor | None, queries: bool) -> Tensor:
        """phi(x), not negative: (batch, heads, tokens, dim) -> (batch, heads, tokens, features)."""
        scaled = x * x.shape[-1] ** -0.25
        along = scaled @ self.projection.to(x.dtype).T
        if self.causal:
            return along.relu() + 1e-3
        exponent = along - scaled.square().sum(-1, keepdim=True) / 2
        if valid is not None:
            along = along.masked_fill(~valid[:, None, :, None], torch.finfo(x.dtype).min)
        # Of the keys one number for all, which cancels.
        most = along.amax(-1, keepdim=True) if queries else along.amax((-2, -1), keepdim=True)
        phi = ((exponent - most).clamp(max=80).exp() + 1e-4) * self.projection.shape[0] ** -0.5
        return phi if valid is None or queries else phi * valid[:, None, :, None]

    def forward(self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None = None) -> Tensor:
        self._count()
        wide = accumulation_type(q)
        q, k, values = (x.to(wide) for x in (q, k, v))
        phi_q, phi_k = self.features(q, valid, True), self.features(k, valid, False)
        if self.causal:
            given = torch.cat((values, torch.ones_like(values[..., :1])), -1)
            slopes = torch.zeros(q.shape[1], device=q.device, dtype=wide)
            sums, _ = linear_scan(Scan(phi_q, phi_k, given, slopes))
            out, total = sums[..., :-1], sums[..., -1:]
        else:
            out = phi_q @ (phi_k.mT @ values)
            total = phi_q @ phi_k.sum(-2).unsqueeze(-1)
        return (out / total.clamp(min=torch.finfo(wide).tiny)).to(v.dtype)


class PastConv(nn.Conv2d):
    """A 3 x 3 convolution with dilation that sees rows of the past and its own, and columns on both sides."""

    def __init__(self, inputs: int, outputs: int, dilation: int = 2) -> None:
        super().__init__(inputs, outputs, 3, dilation=dilation)
        self.reach = dilation

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(F.pad(input, (self.reach, self.reach, 2 * self.reach, 0)))


class MapDecoder(nn.Module):
    """Scores of compressed attention maps, drawn by convolutions over queries and columns, all heads together.

    Args:
        dim: of a head; the encoding has twice that number.
        num_heads, columns: of the map; columns a multiple of 2, of 4 when causal.
        causal: no convolution looks at later queries.

    Shapes: (batch, heads, queries, 2 dim) -> (batch, heads, queries, columns).
    """

    first: nn.Conv2d
    second: nn.Conv2d

    def __init__(self, dim: int, num_heads: int, columns: int, causal: bool) -> None:
        super().__init__()
        self.causal, self.columns, self.num_heads = causal, columns, num_heads
        self.channels, self.width = (2, columns // 4) if causal else (4, columns // 2)
        inside = self.channels * num_heads
        self.draw = nn.Linear(2 * dim, self.channels * self.width)
        if causal:
            self.norm = nn.LayerNorm(self.width)
            self.first, self.second = PastConv(inside, inside), PastConv(inside, inside)
            self.last = nn.Conv2d(inside, num_heads, 1)
            self.out_norm = nn.LayerNorm(columns)
        else:
            self.first = nn.Conv2d(inside, inside, 3, stride=(2, 1), padding=1)
            self.second = nn.Conv2d(inside, inside, 3, padding=1)
            self.last = nn.Conv2d(inside, num_heads, 3, padding=1)

    def forward(self, encoding: Tensor) -> Tensor:
        queries = encoding.shape[2]
        drawn = self.draw(encoding).unflatten(-1, (self.channels, self.width))
        image = drawn.transpose(2, 3).flatten(1, 2)  # (batch, heads * channels, queries, width)
        if self.causal:
            image = self.second(self.first(self.norm(image)).relu()).relu()
            return self.out_norm(self.last(image.repeat_interleave(4, -1)))
        image = self.second(self.first(image).relu()).relu()
        image = self.last(image.repeat_interleave(2, -2))
        return F.interpolate(image, (queries, self.columns), mode="bilinear", align_corners=False)


class PositionValues(nn.Module):
    """One-hot ramp over the sequence: the identity of `dim` rows, read bilinearly at each token's place.

    Shapes: places int64 (batch or 1, tokens), counts int64 (batch or 1, 1) -> (batch or 1, tokens, dim).
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, places: Tensor, counts: Tensor) -> Tensor:
        at = places.clamp(min=0).double() / (counts - 1).clamp(min=1) * (self.dim - 1)
        buckets = torch.arange(self.dim, device=places.device)
        return (1 - (at.unsqueeze(-1) - buckets).abs()).clamp(min=0)
