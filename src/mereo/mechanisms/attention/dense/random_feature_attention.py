"""Random-feature attention: heads whose scores are random and stay as they are; only their values are trained.

Source: Fu, Guo, Bai, Mei 2023, arXiv:2307.11353.
Cost: 2 M (d + 1) (d + 1 + 2 N) FLOPs a sample for M heads and N keys of d numbers; M (d + 1)^2 numbers are stored that
are not trained, and M (d + 1) that are.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.errors import UsageError, check_choice, check_positive
from mereo.mechanisms.attention.dense.random_features import RandomFeatures

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "tanh": torch.tanh}
LARGEST = 2**22
"""Pairs of keys whose kernel is computed at once."""


def with_one(x: Tensor) -> Tensor:
    """z = [x, 1]: (..., dim) -> (..., dim + 1)."""
    return F.pad(x, (0, 1), value=1.0)


def rectified_product(covariance: Tensor, scale: Tensor) -> Tensor:
    """E[ReLU(a) ReLU(a')] of two normal numbers of mean 0, `scale` being the product of their standard deviations.

    s (sqrt(1 - r^2) + r (pi - arccos r)) / (2 pi),   r = covariance / s

    Shapes: any that broadcast, scale above 0 -> the same.

    Reference: the arc-cosine kernel of degree 1, Cho, Saul 2009.
    """
    # The derivatives by scale and covariance are `root` and `slope` themselves, which stay finite at r = 1.
    with torch.no_grad():
        r = (covariance / scale).clamp(-1, 1)
        root, slope = (1 - r.square()).sqrt() / (2 * math.pi), 0.5 - r.arccos() / (2 * math.pi)
    return scale * root + covariance * slope


def random_feature_kernel(query: Tensor, keys: Tensor, other_query: Tensor, other_keys: Tensor) -> Tensor:
    """The kernel of random-feature attention without a bias, for infinitely many heads with ReLU.

    K(x, x') = 1 / (N N') sum_ij E[ReLU(a_i) ReLU(a'_j)] <z_i, z'_j>,   z = [x, 1]

    where a_i = z_0 W z_i and a'_j are normal numbers of the deviations |z_0| |z_i| / 2 and |z'_0| |z'_j| / 2 and of the
    covariance <z_0, z'_0> <z_i, z'_j> / 4.

    Shapes: query (n, dim), keys (n, N, dim), other_query (m, dim), other_keys (m, N', dim) -> (n, m).

    Raises:
        UsageError: for other shapes, no samples and no keys.

    Reference: arXiv:2307.11353; the expectation is `rectified_product`. With inputs of length 1 the deviations are 1.
    """
    sizes = [tuple(x.shape) for x in (query, keys, other_query, other_keys)]
    n, m, dim = len(query), len(other_query), query.shape[-1]
    counts = (n, *sizes[1][1:2], m, *sizes[3][1:2])
    if sizes != [(n, dim), (*counts[:2], dim), (m, dim), (*counts[2:], dim)] or 0 in counts:
        raise UsageError(
            f"the inputs are {', '.join(map(str, sizes))}; they must be (n, dim), (n, N, dim), (m, dim), (m, N', dim),"
            " with at least one sample and one key each."
        )
    there0, there = with_one(other_query), with_one(other_keys)
    far = (there0.square().sum(-1, keepdim=True) * there.square().sum(-1)).sqrt()
    rows = max(LARGEST // (keys.shape[1] * far.numel()), 1)
    parts = []
    for part0, part in zip(with_one(query).split(rows), with_one(keys).split(rows), strict=True):
        near = (part0.square().sum(-1, keepdim=True) * part.square().sum(-1)).sqrt()
        products = (part.flatten(0, 1) @ there.flatten(0, 1).T).view(*near.shape, *far.shape)
        scale = near[:, :, None, None] * far / 4
        covariance = (part0 @ there0.T)[:, None, :, None] * products / 4
        parts.append((rectified_product(covariance, scale) * products).mean((1, 3)))
    return torch.cat(parts)


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return RandomFeatureAttention(4, 6, bias="identity", at_once=4), (torch.randn(2, 4), torch.randn(2, 5, 4))


@mechanism(
    "random_feature_attention",
    family="dense attention",
    over="none",
    values="shared",
    update="linear",
    source="arXiv:2307.11353",
    promises=("masks", "any sender order", "any length"),
    sender_axes={"1": 1},
    largest_input=1e10,  # the output is a cubic polynomial of the inputs, piece by piece
    reconstruction="only the abstract was available; the laws of the weights give scores of variance 1",
    example=_example,
)
class RandomFeatureAttention(RandomFeatures):
    """Average the keys with the random scores of many heads, and learn only what is read from these averages.

    z = [x, 1],   a_mi = z_0 W_m z_i,   f = sum_m 1/N sum_i ReLU(a_mi) <v_m, z_i> + b

    W_m is N(0, 1/4) in each entry, so that scores of inputs of length 1 are N(0, 1); with bias="identity" they are
    N(<x_0, x_i>, 1). f is linear in v, so `fit` solves for v; a trainer of any kind can learn it too.

    Args:
        dim: d, size of query and keys.
        num_heads: M.
        outputs: of f; None for a single one without an axis.
        bias: mean of W: "none", or "identity" for <x_0, x_i> (biased random features, BRFA).
        activation: of the scores: "relu", "gelu" or "tanh". A softmax would not treat each key by itself.
        at_once: heads whose features are in memory at once.

    Shapes: query x_0 (batch, dim), keys x_1 ... x_N (batch, keys, dim), mask bool (batch, keys) or None, True = takes
        part -> (batch,), or (batch, outputs); features (batch, heads, dim + 1). The average is over the keys that take
        part; without any, f is b.

    Reads as: couplings[b, m, 0, i] is ReLU(a_mi) / N, the weight of key i in the average of head m. They do not sum
        to one.

    Deviates: a ridge penalty in `fit` stands for the bound on the norm of v, and the intercept b is ours.

    Reference: arXiv:2307.11353, only whose abstract was available; the laws of W are confirmed by the variance 1 of the
        scores. `random_feature_kernel` is the kernel of infinitely many heads without a bias.
    """

    weight: Tensor

    def __init__(
        self,
        dim: int,
        num_heads: int,
        outputs: int | None = None,
        *,
        bias: str = "none",
        activation: str = "relu",
        at_once: int = 256,
    ) -> None:
        check_positive(dim=dim, num_heads=num_heads)
        check_choice("bias", bias, ("none", "identity"))
        check_choice("activation", activation, ACTIVATIONS)
        super().__init__(num_heads, dim + 1, outputs, at_once)
        self.bias, self.activation = bias, activation
        weight = torch.randn(num_heads, dim + 1, dim + 1) / 2
        if bias == "identity":
            weight[:, range(dim), range(dim)] += 1
        self.register_buffer("weight", weight)
        self.coupling = Coupling("none", "none")

    def blocks(self) -> list[tuple[int, int]]:
        return [(0, self.units)] if self.coupling.watched else super().blocks()

    def block(self, first: int, last: int, *inputs: Tensor | None) -> Tensor:
        query, keys, mask = (*inputs, None)[:3]
        assert query is not None and keys is not None
        z = with_one(keys)
        wanted = (with_one(query) @ self.weight[first:last].transpose(0, 1).flatten(1)).unflatten(1, (-1, z.shape[-1]))
        scores = ACTIVATIONS[self.activation](wanted @ z.mT).unsqueeze(2)
        there = None if mask is None else mask[:, None, None]
        if there is None:
            share = torch.full_like(scores[:1, :1, :1, :1], 1 / max(keys.shape[1], 1))
        else:
            share = (1 / there.sum(-1, keepdim=True).clamp(min=1)).to(scores.dtype)
        return (self.coupling(scores, there, weight=share).squeeze(2) @ z).flatten(1)

    def features(self, query: Tensor, keys: Tensor, mask: Tensor | None = None) -> Tensor:
        """The averages of all heads, 1/N sum_i ReLU(a_mi) z_i: (batch, heads, dim + 1)."""
        return self.block(0, self.units, query, keys, mask).unflatten(1, (self.units, self.per_unit))

    def forward(self, query: Tensor, keys: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.read(query, keys, mask)

    def extra_repr(self) -> str:
        return f"{self.per_unit - 1}, {self.units}, bias={self.bias!r}, activation={self.activation!r}"
