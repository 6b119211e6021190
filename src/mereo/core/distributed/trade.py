"""Heads for sequence: each process trades its tokens of all heads for all tokens of its heads, and back.

Source: arXiv:2309.14509.
"""

from typing import Any

import torch
from torch import Tensor

from mereo.core.distributed.ranks import Ranks


def _to_heads(x: Tensor, lengths: tuple[int, ...], ranks: Ranks) -> Tensor:
    mine = x.shape[1] // ranks.size
    into = [x.new_empty(x.shape[0], mine, length, x.shape[3], device="meta") for length in lengths]
    return torch.cat(ranks.exchange(x.split(mine, 1), into), 2)


def _to_tokens(x: Tensor, lengths: tuple[int, ...], ranks: Ranks) -> Tensor:
    into = [x.new_empty(*x.shape[:2], lengths[ranks.rank], x.shape[3], device="meta")] * ranks.size
    return torch.cat(ranks.exchange(x.split(lengths, 2), into), 1)


class Trade(torch.autograd.Function):
    """(x, lengths, ranks, back) -> (batch, heads / P, all tokens, dim) of (batch, heads, tokens, dim), or back.

    It is its own transpose: the gradient takes the way back.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, lengths: tuple[int, ...], ranks: Ranks, back: bool) -> Tensor:
        ctx.lengths, ctx.ranks, ctx.back = lengths, ranks, back
        return (_to_tokens if back else _to_heads)(x, lengths, ranks)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return Trade.apply(grads[0], ctx.lengths, ctx.ranks, not ctx.back), None, None, None
