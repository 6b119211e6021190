"""PyTorch's own ring attention (context parallel), where it computes the same: equal shards of an even length.

It is experimental in PyTorch and reached by its inner functions, so whatever is missing there leaves our own ring.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mereo.core.distributed.plan import Plan


def _inner() -> Any:
    """PyTorch's module, or None where this version has it elsewhere."""
    try:
        from torch.distributed.tensor.experimental._context_parallel import _attention
    except ImportError:
        return None
    names = ("_templated_ring_attention", "_templated_ring_attention_backward", "_cp_options")
    return _attention if all(hasattr(_attention, name) for name in names) else None


def can_run(plan: Plan, q: Tensor, v: Tensor) -> bool:
    """Whether it computes the same: its kernels take these tensors, and its order of tokens is ours."""
    device = q.device.type
    types = (torch.float16, torch.bfloat16) if device == "cuda" else (torch.float32,)  # it merges in float32
    alike = len({*plan.rows, *plan.columns}) == 1 and q.shape[-1] == v.shape[-1]
    order = plan.layout == "contiguous" or (plan.layout == "zigzag" and plan.causal and plan.rows[0] % 2 == 0)
    balanced = device == "cuda" and q.shape[-1] % 8 == 0
    fits = plan.kernel.block is None and alike and order and q.dtype in types and plan.rows[0] > 0
    return fits and (balanced or device == "cpu") and plan.ranks.size > 1 and _inner() is not None


@contextmanager
def _balanced(inner: Any, balanced: bool) -> Iterator[None]:
    options = inner._cp_options
    before = options.enable_load_balance
    options.enable_load_balance = balanced
    try:
        yield
    finally:
        options.enable_load_balance = before


class ContextParallel(torch.autograd.Function):
    """(q, k, v, plan) -> (out, lse) of this process's queries over the keys of all."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        inner = _inner()
        cuda = q.device.type == "cuda"
        aten = torch.ops.aten
        kernel = aten._scaled_dot_product_flash_attention if cuda else aten._scaled_dot_product_flash_attention_for_cpu
        with _balanced(inner, plan.layout == "zigzag"):
            out, lse, *rest = inner._templated_ring_attention(
                plan.ranks.group, 2, kernel, q, k, v, is_causal=plan.causal, dropout_p=0.0, scale=plan.kernel.scale
            )
        ctx.plan, ctx.rest = plan, rest
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        inner, plan, aten = _inner(), ctx.plan, torch.ops.aten
        options: dict[str, Any] = {"dropout_p": 0.0, "scale": plan.kernel.scale}
        if q.device.type == "cuda":
            kernel = aten._scaled_dot_product_flash_attention_backward.default
            names = ("cum_seq_q", "cum_seq_k", "max_q", "max_k", "philox_seed", "philox_offset")
            options |= dict(zip(names, ctx.rest, strict=False))
        else:
            kernel = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        with _balanced(inner, plan.layout == "zigzag"):
            dq, dk, dv, *_ = inner._templated_ring_attention_backward(
                plan.ranks.group, 2, kernel, grad_out=grads[0].contiguous(), grad_out_name="grad_out", query=q, key=k,
                value=v, out=out, logsumexp=lse, is_causal=plan.causal, **options,
            )  # fmt: skip
        return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype), None
