"""Heads on several processes: all have all tokens, each computes its heads, and their projections are added.

Source: arXiv:1909.08053, section 3.
"""

from typing import Any

import torch
from torch import Tensor

from mereo.core.distributed.ranks import Group, Ranks, ranks_of


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.ranks.sum(grads[0]), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        return ranks.sum(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0], None


def shared(x: Tensor, group: Group) -> Tensor:
    """An input that all processes have: itself, and in the backward pass the sum of all their gradients."""
    ranks = ranks_of(group)
    return x if ranks.size == 1 else _Shared.apply(x, ranks)


def summed(x: Tensor, group: Group) -> Tensor:
    """The sum over all processes; the gradient of the sum goes to each of them unchanged."""
    ranks = ranks_of(group)
    return x if ranks.size == 1 else _Summed.apply(x, ranks)
