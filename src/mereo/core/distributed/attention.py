"""Exact attention over a sequence whose tokens are distributed over several processes.

Source: arXiv:2302.06218 for the setting; the modes are those of arXiv:2310.01889 (ring), 2105.13120 (gathering),
2309.14509 (trading heads for sequence) and 1909.08053 (heads).
"""

import struct
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mereo.core.coupling import Coupling
from mereo.core.distributed.gathered import Gather, Gathered
from mereo.core.distributed.layout import LAYOUTS, shard_lengths, shard_positions
from mereo.core.distributed.partial import Kernel
from mereo.core.distributed.plan import Plan
from mereo.core.distributed.ranks import Group, Ranks, agree, ranks_of
from mereo.core.distributed.ring import Ring
from mereo.core.distributed.trade import Trade
from mereo.core.kernels.attention import attend
from mereo.core.squash import accumulation_type
from mereo.core.topology import Causal
from mereo.errors import UsageError, check_choice, check_positive

MODES = ("ring", "allgather", "alltoall", "heads")
ALONE = Ranks(None, 0, 1)
_TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_SIZES = ("batch", "heads", "dim", "pose", "tokens of q", "tokens of k", "type", "mode", "layout")
_WORDS: dict[str, dict[int, object]] = {
    name: dict(enumerate(values)) for name, values in (("type", _TYPES), ("mode", MODES), ("layout", LAYOUTS))
}


@dataclass(frozen=True)
class _Call:
    """Everything about a call but its tensors."""

    mode: str
    causal: bool
    layout: str
    kernel: Kernel
    coupling: Coupling | None
    return_lse: bool

    @property
    def needs_couplings(self) -> bool:
        """Whether the couplings themselves must be made."""
        return self.coupling is not None and (self.coupling.watched or not self.coupling.is_plain_softmax)


def _problem(q: Any, k: Any, v: Any, call: _Call, ranks: Ranks) -> str | None:
    """The first invalid argument that this process can see, in words; None if there is none."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor) or x.dim() != 4 or x.dtype not in _TYPES:
            shape = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            return f"{name} is {shape}; it must be floating point, (batch, heads, tokens of this process, dim)."
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if k.shape[:2] != q.shape[:2] or k.shape[3] != q.shape[3] or v.shape[:3] != k.shape[:3]:
        return f"shapes are {shapes}; batch and heads must agree, dim of q and k, and tokens of k and v."
    if {k.dtype, v.dtype} != {q.dtype} or {k.device, v.device} != {q.device}:
        return f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}; they must have one type and device."
    if call.causal and q.shape[2] != k.shape[2]:
        return f"shapes are {shapes} with causal attention; a process must hold as many queries as keys."
    if call.mode == "alltoall" and q.shape[1] % ranks.size:
        return f"there are {q.shape[1]} heads for {ranks.size} processes; mode 'alltoall' needs a multiple of them."
    coupling = call.coupling
    if coupling is not None and (coupling.over != "senders" or coupling.topology is not None):
        return f"coupling is {coupling}; it must be over the senders, without a topology (`causal` is an argument)."
    if coupling is not None and coupling.training and coupling.dropout and ranks.size > 1:
        return f"coupling has dropout {coupling.dropout}, which would depend on the number of processes; set it to 0."
    return None


def _named(call: _Call) -> str | None:
    """The first invalid one of the arguments that are names or numbers, in words; None if there is none."""
    try:
        check_choice("mode", call.mode, MODES)
        check_choice("layout", call.layout, LAYOUTS)
        if call.kernel.block is not None:
            check_positive(block=call.kernel.block)
    except UsageError as error:
        return str(error)
    return None


def _compare(q: Any, k: Any, v: Any, call: _Call, ranks: Ranks) -> tuple[Plan, dict[str, list[int]]]:
    """Compare the arguments over the processes; UsageError in all of them, or in none."""
    problem = _named(call) or _problem(q, k, v, call, ranks)
    facts = dict.fromkeys((*_SIZES, "gradients", "watched"), 0)
    if problem is None:
        wants = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
        sizes = (q.shape[0], q.shape[1], q.shape[3], v.shape[3], q.shape[2], k.shape[2], _TYPES.index(q.dtype))
        kinds = (MODES.index(call.mode), LAYOUTS.index(call.layout), int(wants), int(call.needs_couplings))
        facts = dict(zip(facts, (*sizes, *kinds), strict=True))
    scale = struct.unpack("<q", struct.pack("<d", call.kernel.scale))[0]  # compared bit by bit
    facts |= {"causal": int(call.causal), "scale": scale}
    free = ["watched", "gradients"] if call.mode == "heads" else ["watched", "tokens of q", "tokens of k"]
    values = agree(ranks, facts, problem, free, _WORDS)
    rows, columns = values["tokens of q"], values["tokens of k"]
    if sum(columns) == 0:
        raise UsageError("there are no keys in any process; a softmax needs one.")
    shards = call.mode != "heads" and call.layout != "contiguous" and call.causal
    if shards and rows != (needed := shard_lengths(sum(rows), len(rows), call.layout)):
        raise UsageError(
            f"tokens of the processes are {rows} in the layout {call.layout!r}; {sum(rows)} tokens must lie there as"
            f" {needed}, which is what `shard` makes of them."
        )
    return Plan(ranks, tuple(rows), tuple(columns), call.layout, call.causal, call.kernel), values


def _alone(q: Tensor, k: Tensor, v: Tensor, call: _Call) -> tuple[Tensor, Tensor | None]:
    """Attention over tokens that this process has all of, in their order."""
    if call.needs_couplings or (call.coupling is not None and call.coupling.dropout):
        assert call.coupling is not None
        positions = torch.arange(k.shape[2], device=q.device)
        return _coupled(q, k, v, positions if call.causal else None, call)
    if call.return_lse or call.kernel.block is not None:
        plan = Plan(ALONE, (q.shape[2],), (k.shape[2],), "contiguous", call.causal, call.kernel)
        out, lse = Ring.apply(q, k, v, plan)
        return out, lse if call.return_lse else None
    return attend(
        q, k, v, Coupling("senders", topology=Causal() if call.causal else None), scale=call.kernel.scale
    ), None


def _coupled(q: Tensor, k: Tensor, v: Tensor, mine: Tensor | None, call: _Call) -> tuple[Tensor, Tensor | None]:
    """Attention to the keys of all by the couplings themselves; `mine` are the positions of the queries if causal."""
    coupling = Coupling("senders") if call.coupling is None else call.coupling
    mask = None if mine is None else mine.unsqueeze(1) >= torch.arange(k.shape[2], device=q.device)
    out = attend(q, k, v, coupling, mask=mask, scale=call.kernel.scale)
    if not call.return_lse:
        return out, None
    scores = (q.to(accumulation_type(q)) * call.kernel.scale) @ k.to(accumulation_type(q)).transpose(-1, -2)
    return out, (scores if mask is None else scores.masked_fill(~mask, float("-inf"))).logsumexp(-1)


def _gathered(q: Tensor, k: Tensor, v: Tensor, plan: Plan, call: _Call) -> tuple[Tensor, Tensor | None]:
    k, v = (Gather.apply(x, plan.columns, plan.ranks) for x in (k, v))
    mine = None
    if call.causal:
        if plan.order is None:
            first = sum(plan.rows[: plan.ranks.rank])
            mine = torch.arange(first, first + q.shape[2], device=q.device)
        else:
            order = plan.order.to(q.device)
            k, v = k[:, :, order], v[:, :, order]
            mine = shard_positions(sum(plan.rows), plan.ranks.size, plan.ranks.rank, plan.layout).to(q.device)
    return _coupled(q, k, v, mine, call)


def _traded(q: Tensor, k: Tensor, v: Tensor, plan: Plan, call: _Call) -> tuple[Tensor, Tensor | None]:
    ranks = plan.ranks
    q, k, v = (Trade.apply(x, n, ranks, False) for x, n in ((q, plan.rows), (k, plan.columns), (v, plan.columns)))
    back = None
    if call.causal and plan.order is not None:
        order = plan.order.to(q.device)
        back = order.argsort()
        q, k, v = (x[:, :, order] for x in (q, k, v))
    out, lse = _alone(q, k, v, call)
    outputs = [out] if lse is None else [out, lse.unsqueeze(-1)]
    outputs = [x if back is None else x[:, :, back] for x in outputs]
    out, *rest = (Trade.apply(x, plan.rows, ranks, True) for x in outputs)
    return out, rest[0].squeeze(-1) if rest else None


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
            gets all keys and values. "alltoall": tokens of all heads are traded for all tokens of some heads, of which
            there must be a multiple of the processes. "heads": each process has all tokens and some of the heads;
            nothing is sent here, see `ShardedAttention` for the projection.
        causal: whether a token attends to none behind it.
        block: queries whose scores are held at once, in the plain form that this asks for; PyTorch's fused attention
            otherwise, where there is one.
        layout: which tokens a process holds, see `shard_positions`. Causal attention has equal work in all processes
            with "zigzag" and "striped". It makes no difference otherwise.
        scale: factor of the scores; 1 / sqrt(dim) by default.
        return_lse: also return log sum exp of the scores, float32 or wider.
        coupling: makes the couplings where they are watched or no softmax; every process then gathers keys and values,
            and `record` shows (batch, heads, tokens of this process, all tokens).

    Shapes:
        q (batch, heads, tokens, dim), k (batch, heads, senders, dim), v (batch, heads, senders, pose): those of this
        process, any number, different ones in different processes -> (batch, heads, tokens, pose), (batch, heads,
        tokens).

    Raises:
        UsageError: in every process of the group, if the arguments of one are wrong or differ from those of another.

    Every process must call it, and call backward if one does. Gradients are those of one process; those of parameters
    that all processes share must be summed.

    Reference: arXiv:2302.06218; `expected_traffic` has the elements that are sent.
    """
    ranks = ranks_of(group)
    if scale is None:
        scale = q.shape[-1] ** -0.5 if isinstance(q, Tensor) and q.dim() and q.shape[-1] else 1.0
    call = _Call(mode, causal, layout, Kernel(float(scale), block), coupling, return_lse)
    if ranks.size == 1:
        if (problem := _named(call) or _problem(q, k, v, call, ranks)) is not None:
            raise UsageError(problem)
        out, lse = _alone(q, k, v, call)
        return out if lse is None else (out, lse)
    plan, values = _compare(q, k, v, call, ranks)
    if mode == "heads":
        out, lse = _alone(q, k, v, call)
    elif any(values["watched"]):
        out, lse = _gathered(q, k, v, plan, call)
    elif mode == "alltoall":
        out, lse = _traded(q, k, v, plan, call)
    else:
        out, lse = (Gathered if mode == "allgather" else Ring).apply(q, k, v, plan)
    return out if lse is None or not return_lse else (out, lse)
