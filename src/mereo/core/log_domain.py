"""Sums of exponentials that neither overflow nor become NaN when every entry is masked out."""

import math

import torch
from torch import Tensor


def masked_logsumexp(x: Tensor, dim: int, mask: Tensor | None = None) -> Tensor:
    """log sum exp over the entries of `dim` that take part; -inf if none does, with gradient 0.

    Shapes: x (..., n, ...), mask bool broadcastable to it, True = takes part -> (..., ...).
    """
    if mask is None:
        return x.logsumexp(dim)
    floor = torch.finfo(x.dtype).min
    total = x.masked_fill(~mask, floor).logsumexp(dim)
    return torch.where(mask.expand_as(x).any(dim), total, torch.full_like(total, -math.inf))


def log_mean_exp(x: Tensor, dim: int, mask: Tensor | None = None) -> Tensor:
    """log of the mean of exp(x) over the entries of `dim` that take part; -inf if none does."""
    if mask is None:
        return x.logsumexp(dim) - math.log(x.shape[dim])
    count = mask.expand_as(x).sum(dim).clamp(min=1)
    return masked_logsumexp(x, dim, mask) - count.to(x.dtype).log()
