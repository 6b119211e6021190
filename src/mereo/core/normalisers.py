"""How scores become couplings along one axis: softmax, sparsemax, entmax, top-k softmax, sigmoid, none.

Each is a function (scores, dim) -> couplings of the same shape. The first four sum to one along `dim`.
Sparse ones: sparsemax arXiv:1602.02068; 1.5-entmax arXiv:1905.05702. Their threshold is found by sorting (for
any alpha, by bisection), and its derivative is written in closed form (implicit differentiation), so gradients are
exact and finite, and so are second derivatives, except for the bisected entmax.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mereo.core.kernels.transforms import fallback_reason
from mereo.errors import UsageError

Normaliser = Callable[[Tensor, int], Tensor]


def softmax(scores: Tensor, dim: int) -> Tensor:
    """exp(s_i) / sum_j exp(s_j)."""
    if _short(scores, dim):
        # PyTorch normalises along a short last axis one row at a time, and along the first axis many at once.
        return scores.movedim(-1, 0).contiguous().softmax(0).movedim(0, -1)
    return scores.softmax(dim)


def _short(scores: Tensor, dim: int) -> bool:
    """Whether `dim` is the last axis, is shorter than a CPU's vectors, and there are many rows."""
    if scores.device.type != "cpu" or dim not in (-1, scores.dim() - 1) or not 1 < scores.shape[-1] <= 16:
        return False
    return not torch.compiler.is_compiling() and fallback_reason() is None and scores.numel() >= 2**15


def leaky_softmax(scores: Tensor, dim: int) -> Tensor:
    """exp(s_i) / (1 + sum_j exp(s_j)): one more receiver, with score zero, takes what fits no other."""
    orphan = torch.zeros_like(scores.narrow(dim, 0, 1))
    return torch.cat((orphan, scores), dim).softmax(dim).narrow(dim, 1, scores.shape[dim])


def _with_threshold(z: Tensor, threshold: Tensor, weight: Tensor, dim: int) -> Tensor:
    """z - threshold, where d threshold / d z = weight / sum(weight) by the implicit function theorem."""
    weight = weight / weight.sum(dim, keepdim=True)
    return z - (threshold + ((z - z.detach()) * weight).sum(dim, keepdim=True))


def _ranks(z: Tensor, dim: int) -> Tensor:
    shape = [1] * z.dim()
    shape[dim] = z.shape[dim]
    return torch.arange(1, z.shape[dim] + 1, device=z.device, dtype=z.dtype).view(shape)


def sparsemax(scores: Tensor, dim: int) -> Tensor:
    """max(0, s_i - t) with t such that the sum is one: the Euclidean projection on the simplex."""
    # Entries 1 below the largest are outside the support; the clamp keeps masked scores out of the running sums.
    z = (scores - scores.amax(dim, keepdim=True)).clamp(min=-4)
    fixed = z.detach()  # under no_grad by itself, z keeps its forward-mode derivatives
    with torch.no_grad():
        ordered = fixed.sort(dim, descending=True).values
        ranks, total = _ranks(fixed, dim), ordered.cumsum(dim)
        size = (1 + ranks * ordered > total).sum(dim, keepdim=True).clamp(min=1)  # 0 where a score is not finite
        threshold = (total.gather(dim, size - 1) - 1) / size
        support = (fixed > threshold).to(z.dtype)
    return _with_threshold(z, threshold, support, dim).clamp(min=0)


def entmax15(scores: Tensor, dim: int) -> Tensor:
    """max(0, s_i / 2 - t)^2 with t such that the sum is one: between softmax and sparsemax."""
    z = ((scores - scores.amax(dim, keepdim=True)) / 2).clamp(min=-4)
    fixed = z.detach()  # under no_grad by itself, z keeps its forward-mode derivatives
    with torch.no_grad():
        ordered = fixed.sort(dim, descending=True).values
        ranks = _ranks(fixed, dim)
        mean = ordered.cumsum(dim) / ranks
        spread = ranks * (ordered.square().cumsum(dim) / ranks - mean.square())
        candidates = mean - ((1 - spread) / ranks).clamp(min=0).sqrt()
        size = (candidates <= ordered).sum(dim, keepdim=True).clamp(min=1)  # 0 where a score is not finite
        threshold = candidates.gather(dim, size - 1)
        root = (fixed - threshold).clamp(min=0)
    # The derivative of the threshold depends on z itself. Half of it from here, half from above: the value and the
    # first derivatives stay as they are, and the second derivatives become exact.
    moving = _with_threshold(z, threshold, root, dim).clamp(min=0)
    weight = (root / root.sum(dim, keepdim=True) + moving / moving.sum(dim, keepdim=True)) / 2
    return _with_threshold(z, threshold, weight, dim).clamp(min=0).square()


def entmax(scores: Tensor, dim: int, alpha: float) -> Tensor:
    """max(0, (alpha - 1) s_i - t)^(1 / (alpha - 1)) with t such that the sum is one, found by bisection.

    `alpha` is above 1 (where it would be softmax) and at most 2 (sparsemax); its second derivatives are not exact.
    """
    if not 1 < alpha <= 2:
        # Above 2 the derivative is infinite where an entry enters the support.
        raise UsageError(f"alpha is {alpha}; it must be above 1 and at most 2.")
    power = 1 / (alpha - 1)
    z = ((scores - scores.amax(dim, keepdim=True)) * (alpha - 1)).clamp(min=-4)
    fixed = z.detach()
    with torch.no_grad():
        low = torch.full_like(fixed.narrow(dim, 0, 1), -1)
        width = 1 - float(scores.shape[dim]) ** (1 - alpha)
        for _ in range(torch.finfo(z.dtype).bits):
            width /= 2
            total = (fixed - (low + width)).clamp(min=0).pow(power).sum(dim, keepdim=True)
            low = torch.where(total >= 1, low + width, low)
        slope = (fixed - low).clamp(min=0).pow(power - 1) * (fixed > low)
    return _with_threshold(z, low, slope, dim).clamp(min=0).pow(power)


def top_k_softmax(scores: Tensor, dim: int, k: int) -> Tensor:
    """Softmax over the k largest scores, zero elsewhere; among equal scores the first counts."""
    values, indices = scores.topk(min(k, scores.shape[dim]), dim)
    return torch.zeros_like(scores).scatter(dim, indices, values.softmax(dim))


def sigmoid(scores: Tensor, dim: int) -> Tensor:
    """1 / (1 + exp(-s)), for each pair separately."""
    return scores.sigmoid()


def none(scores: Tensor, dim: int) -> Tensor:
    """The scores themselves."""
    return scores


NORMALISERS: dict[str, Normaliser] = {
    "softmax": softmax,
    "leaky_softmax": leaky_softmax,
    "sparsemax": sparsemax,
    "entmax15": entmax15,
    "sigmoid": sigmoid,
    "none": none,
}
"""The normalisers without arguments; top_k takes k and is made in `Coupling`."""

SUM_TO_ONE = frozenset({"softmax", "sparsemax", "entmax15", "top_k"})
"""The normalisers whose couplings sum to one along their axis."""
