"""What processes send each other, differentiable: each collective operation with its transpose as its gradient.

Source: sums of heads arXiv:1909.08053, section 3; trading heads for sequence arXiv:2309.14509.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mereo.core.distributed.ranks import Group, Ranks, ranks_of

Operation = Callable[[Tensor], Tensor]


class Collective(torch.autograd.Function):
    """(x, operation, transpose) -> operation(x), a linear operation over all processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, operation: Operation, transpose: Operation) -> Tensor:
        ctx.operations = transpose, operation
        return operation(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return Collective.apply(grads[0], *ctx.operations), None, None


def _unchanged(x: Tensor) -> Tensor:
    return x.view_as(x)


def shared(x: Tensor, group: Group) -> Tensor:
    """An input that all processes have: itself, and in the backward pass the sum of all their gradients."""
    ranks = ranks_of(group)
    return x if ranks.size == 1 else Collective.apply(x, _unchanged, ranks.sum)


def summed(x: Tensor, group: Group) -> Tensor:
    """The sum of what all processes have; the gradient of the sum goes to each of them unchanged."""
    ranks = ranks_of(group)
    return x if ranks.size == 1 else Collective.apply(x, ranks.sum, _unchanged)


def gather(x: Tensor, lengths: tuple[int, ...], ranks: Ranks) -> Tensor:
    """The tokens of process 0, then of process 1, ...: (batch, heads, tokens, dim) -> (batch, heads, all tokens, dim).

    Args:
        lengths: tokens of each process.
    """

    def gathered(x: Tensor) -> Tensor:
        everything = ranks.gather(pad(x, (0, 0, 0, max(lengths) - x.shape[2]))).unbind(0)
        return torch.cat([each[:, :, :count] for each, count in zip(everything, lengths, strict=True)], 2)

    def scattered(x: Tensor) -> Tensor:
        """One part for each process, and the sum of the parts that all have for this one."""
        parts = x.split(lengths, 2)
        return torch.stack(ranks.exchange(parts, [parts[ranks.rank]] * ranks.size, "scatter")).sum(0)

    return Collective.apply(x, gathered, scattered)


def trade(x: Tensor, lengths: tuple[int, ...], ranks: Ranks, *, back: bool = False) -> Tensor:
    """Tokens of all heads for all tokens of some heads.

    Args:
        lengths: tokens of each process.
        back: the other way.

    Shapes: (batch, heads, tokens, dim) -> (batch, heads / processes, all tokens, dim).
    """

    def there(x: Tensor) -> Tensor:
        mine = x.shape[1] // ranks.size
        into = [x.new_empty(x.shape[0], mine, count, x.shape[3], device="meta") for count in lengths]
        return torch.cat(ranks.exchange(x.split(mine, 1), into), 2)

    def home(x: Tensor) -> Tensor:
        own = x.new_empty(*x.shape[:2], lengths[ranks.rank], x.shape[3], device="meta")
        return torch.cat(ranks.exchange(x.split(lengths, 2), [own] * ranks.size), 1)

    return Collective.apply(x, *((home, there) if back else (there, home)))
