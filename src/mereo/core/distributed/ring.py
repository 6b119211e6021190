"""Ring attention: keys and values travel from process to process, and every process attends to each as it passes.

Source: arXiv:2310.01889; the backward pass lets the gradients travel with their keys and values.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mereo.core.distributed.partial import empty_sums
from mereo.core.distributed.plan import Plan, keep


def head_groups(heads: int, bytes_per_head: int, least: int = 2**20, parts: int = 8) -> Iterator[slice]:
    """Groups of heads that travel together: an eighth of them, or more if that is less than a MiB.

    Tensors in transit are held several times. In small groups this adds little to what a process holds anyway.
    """
    together = max(1, heads // parts, -(-least // max(bytes_per_head, 1)))
    for first in range(0, heads, together):
        yield slice(first, min(first + together, heads))


class _Buffers:
    """A few flat buffers, for the keys and values, and their gradients, that are here and that arrive.

    They are reused for one group of heads after the other, and in every step: repeated allocation in other sizes would
    fragment memory.
    """

    def __init__(self, plan: Plan, k: Tensor, v: Tensor, groups: list[slice], count: int, dtype: torch.dtype) -> None:
        self.plan, self.batch, self.dims = plan, k.shape[0], (k.shape[3], v.shape[3])
        largest = max((group.stop - group.start for group in groups), default=0)
        size = max(plan.columns) * self.batch * largest * sum(self.dims)
        self.held = [k.new_empty(size, dtype=dtype) for _ in range(count)]

    def of(self, number: int, sender: int, heads: int, dtype: torch.dtype) -> Tensor:
        """The part of a buffer that belongs to that process."""
        size = self.plan.columns[sender] * self.batch * heads * sum(self.dims)
        return self.held[number].view(dtype)[:size]

    def split(self, buffer: Tensor, sender: int, heads: int) -> tuple[Tensor, Tensor]:
        """Keys and values of that process, or their gradients, as views."""
        shape = (self.batch, heads, self.plan.columns[sender])
        cut = self.batch * heads * shape[2] * self.dims[0]
        return buffer[:cut].view(*shape, self.dims[0]), buffer[cut:].view(*shape, self.dims[1])

    def pack(self, number: int, k: Tensor, v: Tensor) -> Tensor:
        """This process's own keys and values, to be sent first."""
        rank, heads = self.plan.ranks.rank, k.shape[1]
        buffer = self.of(number, rank, heads, k.dtype)
        for part, x in zip(self.split(buffer, rank, heads), (k, v), strict=True):
            part.copy_(x)
        return buffer


def _groups(plan: Plan, k: Tensor, v: Tensor) -> list[slice]:
    """Groups of heads, by the longest shard, so that all processes form the same."""
    longest = max(plan.columns)
    bytes_per_head = k.shape[0] * longest * (k.shape[3] + v.shape[3]) * k.element_size()
    return list(head_groups(k.shape[1], bytes_per_head))


class Ring(torch.autograd.Function):
    """(q, k, v, plan) -> (out, lse) of this process's queries over the keys of all."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        out, lse = empty_sums(q, v)
        ranks = plan.ranks
        groups = _groups(plan, k, v)
        buffers = _Buffers(plan, k, v, groups, min(ranks.size, 2), k.dtype)
        for heads in groups:
            here = buffers.pack(0, k[:, heads], v[:, heads])
            count = heads.stop - heads.start
            for step in range(ranks.size):
                sender, following = (ranks.rank - step) % ranks.size, (ranks.rank - step - 1) % ranks.size
                last = step == ranks.size - 1
                coming = here if last else buffers.of((step + 1) % 2, following, count, k.dtype)
                requests = [] if last else ranks.start_shift(here, coming)
                key, value = buffers.split(here, sender, count)
                plan.attend(sender, q[:, heads], key, value, out[:, heads], lse[:, heads])
                for request in requests:
                    request.wait()
                here = coming
        return keep(ctx, plan, q, k, v, out, lse)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        plan: Plan = ctx.plan
        ranks, (grad, grad_lse) = plan.ranks, grads
        grad = torch.zeros_like(out) if grad is None else grad
        dq = q.new_zeros(q.shape, dtype=lse.dtype)
        dk, dv = torch.empty_like(k), torch.empty_like(v)
        groups, wide = _groups(plan, k, v), lse.dtype
        buffers = _Buffers(plan, k, v, groups, 3 if ranks.size > 1 else 2, wide)
        for heads in groups:
            given = [None if x is None else x[:, heads] for x in (grad, grad_lse, q, out, lse)]
            # Numbers of buffers: the keys and values that are here, the sums of their gradients, and arriving ones.
            count, own, summed, free = heads.stop - heads.start, 0, 1, 2
            here, total = buffers.pack(own, k[:, heads], v[:, heads]), buffers.of(summed, ranks.rank, count, wide)
            total.zero_()
            for step in range(ranks.size):
                sender, following = (ranks.rank - step) % ranks.size, (ranks.rank - step - 1) % ranks.size
                last = step == ranks.size - 1
                coming = here if last else buffers.of(free, following, count, k.dtype)
                requests = [] if last else ranks.start_shift(here, coming)
                into = (dq[:, heads], *buffers.split(total, sender, count))
                plan.gradients(sender, given, *buffers.split(here, sender, count), into)
                for request in requests:
                    request.wait()
                # The sums of the keys that come next, in place of keys that are done with; after the last step those
                # of this process's own come home.
                if ranks.size > 1:
                    arriving = buffers.of(own, following, count, wide)
                    ranks.shift(total, arriving)
                    own, summed, free = free, own, summed
                    here, total = coming, arriving
            dk[:, heads], dv[:, heads] = buffers.split(total, ranks.rank, count)
        return dq.to(q.dtype), dk, dv, None
