"""Attention with the keys and values of all processes gathered in each: simple, with memory for the whole sequence."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mereo.core.distributed.layout import shard_positions
from mereo.core.distributed.plan import Parts, Plan, Result
from mereo.core.distributed.ranks import Ranks


class Gather(torch.autograd.Function):
    """(x, lengths, ranks) -> the tokens of process 0, then of process 1, ...: (batch, heads, all tokens, dim)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, lengths: tuple[int, ...], ranks: Ranks) -> Tensor:
        ctx.lengths, ctx.ranks = lengths, ranks
        everything = ranks.gather(pad(x, (0, 0, 0, max(lengths) - x.shape[2]))).unbind(0)
        return torch.cat([each[:, :, :count] for each, count in zip(everything, lengths, strict=True)], 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # The transpose: one part for each process, and the sum of the parts that all have for this one.
        parts, ranks = grads[0].split(ctx.lengths, 2), ctx.ranks
        return torch.stack(ranks.exchange(parts, [parts[ranks.rank]] * ranks.size, "scatter")).sum(0), None, None


def gathered(q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Result:
    """Mode "allgather", and every mode while couplings are watched."""
    k, v = (Gather.apply(x, plan.columns, plan.ranks) for x in (k, v))
    if not plan.watched:
        out, lse = Parts.apply(q, k, v, plan)
        return out, lse
    mine = None
    if plan.causal:
        if plan.order is None:
            first = sum(plan.rows[: plan.ranks.rank])
            mine = torch.arange(first, first + q.shape[2], device=q.device)
        else:
            order = plan.order.to(q.device)
            k, v = k[:, :, order], v[:, :, order]
            mine = shard_positions(sum(plan.rows), plan.ranks.size, plan.ranks.rank, plan.layout).to(q.device)
    return plan.coupled(q, k, v, mine)
