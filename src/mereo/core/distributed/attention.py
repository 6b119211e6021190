"""Exact attention over a sequence whose tokens are distributed over several processes.

Source: arXiv:2302.06218 for the setting; the modes are from arXiv:2310.01889 (ring), 2105.13120 (gathering),
2309.14509 (trading heads for sequence) and 1909.08053 (heads).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mereo.core.coupling import Coupling
from mereo.core.distributed.layout import LAYOUTS, shard_lengths
from mereo.core.distributed.partial import Kernel
from mereo.core.distributed.plan import Plan, Result
from mereo.core.distributed.ranks import Group, agree, ranks_of
from mereo.core.distributed.ring import Ring
from mereo.core.distributed.schemes import gathered, traded
from mereo.errors import UsageError, check_choice, check_positive

SCHEMES: dict[str, Callable[[Tensor, Tensor, Tensor, Plan], Result]] = {
    "ring": Ring.apply,
    "allgather": gathered,
    "alltoall": traded,
    "heads": lambda q, k, v, plan: plan.alone(q, k, v),
}
"""How tokens of several processes meet, by the name of the mode."""
MODES = tuple(SCHEMES)
_TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def _problem(q: Any, k: Any, v: Any, plan: Plan) -> str | None:
    """The first invalid argument that this process can see, in words; None if there is none."""
    try:
        check_choice("mode", plan.mode, MODES)
        check_choice("layout", plan.layout, LAYOUTS)
        if plan.kernel.block is not None:
            check_positive(block=plan.kernel.block)
    except UsageError as error:
        return str(error)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor) or x.dim() != 4 or x.dtype not in _TYPES:
            shape = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            return f"{name} is {shape}; it must be floating point, (batch, heads, tokens of this process, dim)."
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if k.shape[:2] != q.shape[:2] or k.shape[3] != q.shape[3] or v.shape[:3] != k.shape[:3]:
        return f"shapes are {shapes}; batch and heads must agree, dim of q and k, and tokens of k and v."
    if {k.dtype, v.dtype} != {q.dtype} or {k.device, v.device} != {q.device}:
        return f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}; they must have one type and device."
    if plan.causal and q.shape[2] != k.shape[2]:
        return f"shapes are {shapes} with causal attention; a process must hold as many queries as keys."
    if plan.mode == "alltoall" and q.shape[1] % plan.ranks.size:
        return (
            f"there are {q.shape[1]} heads for {plan.ranks.size} processes; mode 'alltoall' needs a multiple of them."
        )
    coupling = plan.coupling
    if coupling is not None and (coupling.over != "senders" or coupling.topology is not None):
        return f"coupling is {coupling}; it must be over the senders, without a topology (`causal` is an argument)."
    if coupling is not None and coupling.training and coupling.dropout and plan.ranks.size > 1:
        return f"coupling has dropout {coupling.dropout}, which would depend on the number of processes; set it to 0."
    return None


def _agreed(q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Plan:
    """The plan with the sizes of all processes; UsageError in all of them, or in none."""
    problem, facts = _problem(q, k, v, plan), {}
    if problem is None:
        facts = {
            "batch": q.shape[0], "heads": q.shape[1], "dim": q.shape[3], "pose": v.shape[3],
            "tokens of q": q.shape[2], "tokens of k": k.shape[2], "type": str(q.dtype),
            "mode": plan.mode, "layout": plan.layout, "causal": plan.causal, "scale": plan.kernel.scale,
            "gradients": torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)),
            "watched": plan.needs_couplings,
        }  # fmt: skip
    free = ["watched", "gradients"] if plan.mode == "heads" else ["watched", "tokens of q", "tokens of k"]
    values = agree(plan.ranks, facts, problem, free)
    rows, columns = values["tokens of q"], values["tokens of k"]
    if sum(columns) == 0:
        raise UsageError("there are no keys in any process; a softmax needs one.")
    shards = plan.mode != "heads" and plan.layout != "contiguous" and plan.causal
    if shards and rows != (needed := shard_lengths(sum(rows), len(rows), plan.layout)):
        raise UsageError(
            f"tokens of the processes are {rows} in the layout {plan.layout!r}; {sum(rows)} tokens must lie there as"
            f" {needed}, which is what `shard` makes of them."
        )
    return replace(plan, rows=tuple(rows), columns=tuple(columns), watched=any(values["watched"]))


def distributed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    group: Group = None,
    mode: str = "ring",
    causal: bool = False,
    block: int | None = None,
    *,
    layout: str = "contiguous",
    scale: float | None = None,
    return_lse: bool = False,
    coupling: Coupling | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend to the tokens of all processes of a group, each of which holds a part of the sequence; exact.

    out_i = sum_j softmax_j(scale <q_i, k_j>) v_j   over all tokens j of all processes (causal: j up to i)

    Args:
        group: the processes, such as `torch.distributed.group.WORLD`; None, or a group of one, is plain attention.
        mode: "ring": keys and values travel from process to process; memory for one shard. "allgather": each process
            gets all keys and values. "alltoall": tokens of all heads are traded for all tokens of some heads; the
            number of heads is a multiple of the processes. "heads": each process has all tokens and some of the heads;
            nothing is sent here, see `ShardedAttention` for the projection.
        causal: whether a token attends to none behind it.
        block: queries whose scores are held at once, in the plain form that this asks for; PyTorch's fused attention
            otherwise, if there is one.
        layout: which tokens a process holds, see `shard_positions`. Causal attention has equal work in all processes
            with "zigzag" and "striped". It makes no difference otherwise.
        scale: factor of the scores; 1 / sqrt(dim) by default.
        return_lse: also return log sum exp of the scores, float32 or wider.
        coupling: makes the couplings if watched or not a softmax; every process then gathers keys and values,
            and `record` shows (batch, heads, tokens of this process, all tokens).

    Shapes:
        q (batch, heads, tokens, dim), k (batch, heads, senders, dim), v (batch, heads, senders, pose): the part of this
        process, of any length, which may differ between processes -> (batch, heads, tokens, pose), (batch, heads,
        tokens).

    Raises:
        UsageError: in every process of the group, if the arguments of one are wrong or differ from another's.

    Every process must call it, and call backward if one does. Gradients are of one process; gradients of parameters
    that all processes share must be summed.

    Reference: arXiv:2302.06218; `expected_traffic` has the elements that are sent.
    """
    if scale is None:
        scale = q.shape[-1] ** -0.5 if isinstance(q, Tensor) and q.dim() and q.shape[-1] else 1.0
    plan = Plan(ranks_of(group), mode, layout, causal, Kernel(float(scale), block), coupling, return_lse)
    if plan.ranks.size > 1:
        plan = _agreed(q, k, v, plan)
        scheme = gathered if plan.watched and mode != "heads" else SCHEMES[mode]
    elif (problem := _problem(q, k, v, plan)) is not None:
        raise UsageError(problem)
    else:
        scheme = SCHEMES["heads"]
    out, lse = scheme(q, k, v, plan)
    return out if lse is None or not return_lse else (out, lse)
