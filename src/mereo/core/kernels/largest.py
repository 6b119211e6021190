"""Scores that stay finite, whatever is in the queries and keys.

Products of entries up to `largest_entry` fit the type in which they are added; an infinity there would make every
softmax NaN. Larger entries, and infinite ones, count as this largest, in every execution of every attention. NaN stays
NaN. The test for it needs the value of a norm, so it is left out on GPUs, which would have to wait for it, and in
compiled and exported programs: there products that overflow make NaN, as in PyTorch's own attention.
"""

import torch
from torch import Tensor

from mereo.core.kernels.transforms import steps_aside
from mereo.core.squash import accumulation_type

LARGEST_SUM = 1e37
"""If the logarithm of a softmax's sum is larger, a compiled pass met scores that overflow float32."""


def largest_entry(x: Tensor, dim: int) -> float:
    """sqrt(largest number / (2 dim)): two vectors of such entries have a finite product; at most the largest number."""
    return min((torch.finfo(accumulation_type(x)).max / (2 * max(dim, 1))) ** 0.5, torch.finfo(x.dtype).max)


def _is_seen(x: Tensor) -> bool:
    """Whether values of x may be looked at now: on the CPU, and nothing traces or replaces operations."""
    if x.device.type != "cpu" or not x.is_floating_point() or type(x) not in (Tensor, torch.nn.Parameter):
        return False
    watched = torch.compiler.is_compiling() or torch._C._is_tracing() or torch._C._len_torch_dispatch_stack()
    return not watched and steps_aside() is None


def exceeds(x: Tensor, largest: float) -> bool:
    """Whether entries of x may be larger than that, infinite or NaN; False where this cannot be seen.

    Reads x once. The norm of the norms of rows is that of all entries: where rows do not follow each other in memory,
    as those of queries made together with keys and values, it takes a quarter of the time.
    """
    if not _is_seen(x):
        return False
    values, wide = x.detach(), accumulation_type(x)
    if not x.is_contiguous():
        values = torch.linalg.vector_norm(values, dim=-1, dtype=wide)
    return not torch.linalg.vector_norm(values, dtype=wide).item() <= largest


def within_range(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys whose products are finite; the same tensors where they are anyway.

    Shapes: (..., dim) each -> the same.
    """
    largest = largest_entry(q, q.shape[-1])
    return _within(q, largest), _within(k, largest)


def _within(x: Tensor, largest: float) -> Tensor:
    return x.clamp(-largest, largest) if exceeds(x, largest) else x
