"""Ring attention: keys and values travel from process to process, and every process attends to each as it passes.

Source: arXiv:2310.01889; the backward pass lets the gradients travel with their keys and values.
"""

from typing import Any

import torch
from torch import Tensor

from mereo.core.distributed.plan import Plan, empty_sums, head_groups


def _pack(k: Tensor, v: Tensor) -> Tensor:
    return torch.cat((k.reshape(-1), v.reshape(-1)))


class _Buffers:
    """Flat buffers of keys and values, or of their gradients, of each process."""

    def __init__(self, plan: Plan, k: Tensor, v: Tensor, dtype: torch.dtype | None = None) -> None:
        self.plan, self.like = plan, k
        self.key, self.value = k.shape, v.shape
        self.dtype = k.dtype if dtype is None else dtype

    def _shapes(self, sender: int) -> tuple[list[int], list[int]]:
        tokens = self.plan.columns[sender]
        return [*self.key[:2], tokens, self.key[3]], [*self.value[:2], tokens, self.value[3]]

    def empty(self, sender: int) -> Tensor:
        """For what comes from that process."""
        tokens, batch_heads = self.plan.columns[sender], self.key[0] * self.key[1]
        return self.like.new_empty(tokens * batch_heads * (self.key[3] + self.value[3]), dtype=self.dtype)

    def split(self, buffer: Tensor, sender: int) -> tuple[Tensor, Tensor]:
        """Keys and values of that process, as views."""
        key, value = self._shapes(sender)
        cut = key[0] * key[1] * key[2] * key[3]
        return buffer[:cut].view(key), buffer[cut:].view(value)


def _groups(plan: Plan, k: Tensor, v: Tensor) -> Any:
    """Groups of heads, by the longest shard, so that all processes form the same."""
    longest = max(plan.columns)
    bytes_per_head = k.shape[0] * longest * (k.shape[3] + v.shape[3]) * k.element_size()
    return head_groups(k.shape[1], bytes_per_head)


class Ring(torch.autograd.Function):
    """(q, k, v, plan) -> (out, lse) of this process's queries over the keys of all."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        out, lse = empty_sums(q, v)
        ranks = plan.ranks
        for heads in _groups(plan, k, v):
            key, value = k[:, heads], v[:, heads]
            buffers, here = _Buffers(plan, key, value), _pack(key, value)
            for step in range(ranks.size):
                sender, following = (ranks.rank - step) % ranks.size, (ranks.rank - step - 1) % ranks.size
                last = step == ranks.size - 1
                coming = buffers.empty(following) if not last else here
                requests = [] if last else ranks.start_shift(here, coming)
                key, value = buffers.split(here, sender)
                plan.attend(sender, q[:, heads], key, value, out[:, heads], lse[:, heads])
                for request in requests:
                    request.wait()
                here = coming
        out = out.to(q.dtype)
        ctx.plan = plan
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        plan: Plan = ctx.plan
        ranks, (grad, grad_lse) = plan.ranks, grads
        grad = torch.zeros_like(out) if grad is None else grad
        dq = q.new_zeros(q.shape, dtype=lse.dtype)
        dk, dv = torch.empty_like(k), torch.empty_like(v)
        for heads in _groups(plan, k, v):
            key, value = k[:, heads], v[:, heads]
            buffers, sums = _Buffers(plan, key, value), _Buffers(plan, key, value, lse.dtype)
            given = (
                grad[:, heads],
                None if grad_lse is None else grad_lse[:, heads],
                q[:, heads],
                out[:, heads],
                lse[:, heads],
            )
            here, total = _pack(key, value), sums.empty(ranks.rank).zero_()
            for step in range(ranks.size):
                sender, following = (ranks.rank - step) % ranks.size, (ranks.rank - step - 1) % ranks.size
                last = step == ranks.size - 1
                coming = here if last else buffers.empty(following)
                requests = [] if last else ranks.start_shift(here, coming)
                into = (dq[:, heads], *sums.split(total, sender))
                plan.gradients(sender, given, *buffers.split(here, sender), into)
                for request in requests:
                    request.wait()
                # The sums of the keys that come next; after the last step those of this process's own come home.
                arriving = sums.empty(following)
                if ranks.size > 1:
                    ranks.shift(total, arriving)
                    total = arriving
                here = coming
            dk[:, heads], dv[:, heads] = sums.split(total, ranks.rank)
        return dq.to(q.dtype), dk, dv, None
