"""Schemes that bring tokens together before attention: all keys to every process, or all tokens of some heads.

Source: gathering arXiv:2105.13120; trading heads for sequence arXiv:2309.14509.
"""

import torch
from torch import Tensor

from mereo.core.distributed.collectives import gather, trade
from mereo.core.distributed.layout import shard_positions
from mereo.core.distributed.plan import Parts, Plan, Result


def gathered(q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Result:
    """Mode "allgather", and every mode while couplings are watched; memory for the keys of the whole sequence."""
    k, v = (gather(x, plan.columns, plan.ranks) for x in (k, v))
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


def traded(q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Result:
    """Mode "alltoall"."""
    q, k, v = (trade(x, n, plan.ranks) for x, n in ((q, plan.rows), (k, plan.columns), (v, plan.columns)))
    order = plan.order.to(q.device) if plan.causal and plan.order is not None else None
    if order is not None:
        q, k, v = (x[:, :, order] for x in (q, k, v))
    out, lse = plan.alone(q, k, v)
    outputs = [out] if lse is None else [out, lse.unsqueeze(-1)]
    outputs = outputs if order is None else [x[:, :, order.argsort()] for x in outputs]
    out, *rest = (trade(x, plan.rows, plan.ranks, back=True) for x in outputs)
    return out, rest[0].squeeze(-1) if rest else None
