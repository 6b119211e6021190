"""Lengths and squashing of capsules, with finite gradients at zero and float32 accumulation.

    lengths(s)            = sqrt(sum_d s_d^2 + eps)
    squash(s)             = |s|^2 / (1 + |s|^2) * s / |s|  = s |s| / (1 + |s|^2)       arXiv:1710.09829, eq. 1
    squash_exponential(s) = (1 - exp(-|s|)) * s / |s|                                  arXiv:2101.12491

Half-precision input is computed in float32 and returned in its own type. Entries beyond 1e16 are clamped, so that
the sum of their squares stays finite: a capsule that large is a unit vector anyway.
"""

import torch
from torch import Tensor

EPS = 1e-16
"""Added to a squared length before its root: the length of a zero vector is 1e-8 and its gradient 0."""
_LARGEST = 1e16


def accumulation_type(x: Tensor) -> torch.dtype:
    """float32 for half precision, else the tensor's own type."""
    return torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype


def bounded(x: Tensor, largest: float = _LARGEST) -> Tensor:
    """Entries clamped to +-largest, by default so that sums of their products stay finite in float32.

    Shapes: any -> the same.
    """
    largest = min(largest, torch.finfo(x.dtype).max)
    return x.clamp(-largest, largest)


def lengths(s: Tensor, dim: int = -1, *, keepdim: bool = False, eps: float = EPS) -> Tensor:
    """Euclidean length along `dim`.

    Shapes: s (..., pose) -> (...), or (..., 1) with `keepdim`.
    """
    wide = bounded(s.to(accumulation_type(s)))
    return (wide.square().sum(dim, keepdim=keepdim) + eps).sqrt().to(s.dtype)


def squash(s: Tensor, dim: int = -1) -> Tensor:
    """Keep the direction, map the length into [0, 1): |s|^2 / (1 + |s|^2); quadratic for short vectors.

    Shapes: s (..., pose) -> (..., pose).
    """
    wide = bounded(s.to(accumulation_type(s)))
    length = lengths(wide, dim, keepdim=True)
    return (wide * (length / (1 + length.square()))).to(s.dtype)


def squash_exponential(s: Tensor, dim: int = -1) -> Tensor:
    """Keep the direction, map the length into [0, 1): 1 - exp(-|s|); linear for short vectors.

    Shapes: s (..., pose) -> (..., pose).
    """
    wide = bounded(s.to(accumulation_type(s)))
    length = lengths(wide, dim, keepdim=True)
    return (wide * (-torch.expm1(-length) / length)).to(s.dtype)
