"""Heads for sequence: each process trades its tokens of all heads for all tokens of its heads, and back.

Source: arXiv:2309.14509.
"""

from typing import Any

import torch
from torch import Tensor

from mereo.core.distributed.plan import Plan, Result
from mereo.core.distributed.ranks import Ranks


class Trade(torch.autograd.Function):
    """(x, lengths, ranks, back) -> (batch, heads / P, all tokens, dim) of (batch, heads, tokens, dim), or back.

    It is its own transpose: the gradient takes the way back.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, lengths: tuple[int, ...], ranks: Ranks, back: bool) -> Tensor:
        ctx.lengths, ctx.ranks, ctx.back = lengths, ranks, back
        mine = x.shape[1] if back else x.shape[1] // ranks.size
        counts = [lengths[ranks.rank]] * ranks.size if back else lengths
        into = [x.new_empty(x.shape[0], mine, count, x.shape[3], device="meta") for count in counts]
        return torch.cat(ranks.exchange(x.split(lengths, 2) if back else x.split(mine, 1), into), 1 if back else 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return Trade.apply(grads[0], ctx.lengths, ctx.ranks, not ctx.back), None, None, None


def traded(q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Result:
    """Mode "alltoall"."""
    ranks = plan.ranks
    q, k, v = (Trade.apply(x, n, ranks, False) for x, n in ((q, plan.rows), (k, plan.columns), (v, plan.columns)))
    order = plan.order.to(q.device) if plan.causal and plan.order is not None else None
    if order is not None:
        q, k, v = (x[:, :, order] for x in (q, k, v))
    out, lse = plan.alone(q, k, v)
    outputs = [out] if lse is None else [out, lse.unsqueeze(-1)]
    outputs = outputs if order is None else [x[:, :, order.argsort()] for x in outputs]
    out, *rest = (Trade.apply(x, plan.rows, ranks, True) for x in outputs)
    return out, rest[0].squeeze(-1) if rest else None
