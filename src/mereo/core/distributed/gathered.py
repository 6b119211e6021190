"""Attention with the keys and values of all processes gathered in each: simple, with memory for the whole sequence."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mereo.core.distributed.plan import Plan, empty_sums
from mereo.core.distributed.ranks import Ranks


def gather_tokens(x: Tensor, lengths: tuple[int, ...], ranks: Ranks) -> list[Tensor]:
    """The tensors of all processes, which differ in axis 2 only: (batch, heads, tokens, dim) each."""
    longest = max(lengths)
    padded = pad(x, (0, 0, 0, longest - x.shape[2])) if x.shape[2] < longest else x
    return [each[:, :, :count] for each, count in zip(ranks.gather(padded).unbind(0), lengths, strict=True)]


def scatter_sum(parts: list[Tensor], own: Tensor, ranks: Ranks) -> Tensor:
    """The transpose of gathering: one part for each process, and of what all have for this one, the sum."""
    return torch.stack(ranks.exchange(parts, [own] * ranks.size, "scatter")).sum(0)


class Gather(torch.autograd.Function):
    """(x, lengths, ranks) -> the tokens of process 0, then of process 1, ...: (batch, heads, all tokens, dim)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, lengths: tuple[int, ...], ranks: Ranks) -> Tensor:
        ctx.lengths, ctx.ranks = lengths, ranks
        return torch.cat(gather_tokens(x, lengths, ranks), 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        parts = list(grads[0].split(ctx.lengths, 2))
        return scatter_sum(parts, parts[ctx.ranks.rank], ctx.ranks), None, None


class Gathered(torch.autograd.Function):
    """(q, k, v, plan) -> (out, lse) of this process's queries over the keys of all."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        out, lse = empty_sums(q, v)
        keys, values = (gather_tokens(x, plan.columns, plan.ranks) for x in (k, v))
        for sender, (key, value) in enumerate(zip(keys, values, strict=True)):
            plan.attend(sender, q, key, value, out, lse)
        out = out.to(q.dtype)
        ctx.plan = plan
        ctx.save_for_backward(q, out, lse, *keys, *values)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        q, out, lse, *gathered = ctx.saved_tensors
        plan: Plan = ctx.plan
        grad, grad_lse = grads
        grad = torch.zeros_like(out) if grad is None else grad
        dq = q.new_zeros(q.shape, dtype=lse.dtype)
        sums = [torch.zeros_like(x, dtype=lse.dtype) for x in gathered]
        size = plan.ranks.size
        for sender in range(size):
            into = (dq, sums[sender], sums[size + sender])
            plan.gradients(sender, (grad, grad_lse, q, out, lse), gathered[sender], gathered[size + sender], into)
        own = plan.ranks.rank
        dk, dv = (scatter_sum(x, x[own], plan.ranks) for x in (sums[:size], sums[size:]))
        return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype), None
