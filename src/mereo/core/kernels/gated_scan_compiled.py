"""A scan of states that decay by rates of their own in compiled C++, `gated_scan.cpp`, as one operator of PyTorch.

    S_t[h, n] = exp(x_t[h] A[h, n]) S_(t-1)[h, n] + w_t[h] k_t[n],    out_t[h] = sum_n q_t[n] S_t[h, n]

Nothing but the arguments is saved: the gradients make the states again, some tokens at a time.

Cost: 1 exponential and 4 operations for each channel, state and token forward, 2 exponentials backward. Live at once on
each thread, of the channels of a vector: a state, and for the gradients those of 32 tokens and of one in 32.
"""

from ctypes import c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from mereo.core.kernels.again import gradients_again
from mereo.core.kernels.library import at, entry
from mereo.core.kernels.transforms import forward_mode

_forward = entry("mereo_gated_scan", *[c_void_p] * 8, *[c_int64] * 5)
_gradients = entry("mereo_gated_scan_backward", *[c_void_p] * 14, *[c_int64] * 6)
UNITS = 16
"""Least pieces that the gradients are cut into; more than this many images are a piece each."""


@torch.library.custom_op("mereo::gated_scan", mutates_args=())
def scan_compiled(
    x: Tensor, w: Tensor, rates: Tensor, k: Tensor, q: Tensor, first: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Outputs and the last state; all tensors are float32.

    Shapes: x, w (batch, tokens, heads), rates (heads, dim), k, q (batch, tokens, dim), first (batch, heads, dim) ->
        (batch, tokens, heads), (batch, heads, dim).
    """
    assert _forward is not None
    tensors = [each if each is None else each.contiguous() for each in (x, w, rates, k, q, first)]
    (batch, tokens, heads), dim = x.shape, rates.shape[1]
    out, last = x.new_empty(batch, tokens, heads), x.new_empty(batch, heads, dim)
    _forward(*map(at, (*tensors, out, last)), batch, tokens, heads, dim, torch.get_num_threads())
    return out, last


@scan_compiled.register_fake
def _(x: Tensor, w: Tensor, rates: Tensor, k: Tensor, q: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[0], *rates.shape)


@torch.library.custom_op("mereo::gated_scan_backward", mutates_args=())
def _backward(
    grad: Tensor, grad_last: Tensor | None, x: Tensor, w: Tensor, rates: Tensor, k: Tensor, q: Tensor,
    first: Tensor | None, shared: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of all arguments; those of k and q are 0 unless `shared`."""
    assert _gradients is not None
    tensors = [each if each is None else each.contiguous() for each in (grad, grad_last, x, w, rates, k, q, first)]
    (batch, tokens, heads), dim = x.shape, rates.shape[1]
    groups = min(-(-UNITS // max(batch, 1)), heads)
    dx, dw = x.new_empty(x.shape), x.new_empty(x.shape)
    dA, dfirst = x.new_empty(batch, heads, dim), x.new_empty(batch, heads, dim)
    dk, dq = x.new_zeros(2, batch, groups, tokens, dim) if shared else (None, None)
    made = (dx, dw, dA, dfirst, dk, dq)
    _gradients(*map(at, (*tensors, *made)), batch, tokens, heads, dim, groups, torch.get_num_threads())
    both = (k.new_zeros(k.shape), q.new_zeros(q.shape)) if dk is None or dq is None else (dk.sum(1), dq.sum(1))
    return dx, dw, dA.sum(0), *both, dfirst


@_backward.register_fake
def _(
    grad: Tensor, grad_last: Tensor | None, x: Tensor, w: Tensor, rates: Tensor, k: Tensor, q: Tensor,
    first: Tensor | None, shared: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    return *(each.new_empty(each.shape) for each in (x, w, rates, k, q)), x.new_empty(x.shape[0], *rates.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs)
    ctx.set_materialize_grads(False)


def _rule(ctx: Any, grad: Tensor | None, grad_last: Tensor | None) -> tuple[Any, ...]:
    saved = ctx.saved_tensors
    if grad is None and grad_last is None:
        return (None,) * 6
    if torch.is_grad_enabled() or forward_mode():
        from mereo.core.kernels.gated_scan import GatedScan, recurrent

        def plain(
            x: Tensor, w: Tensor, rates: Tensor, k: Tensor, q: Tensor, first: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            logs, v = x.transpose(1, 2).unsqueeze(-1) * rates.unsqueeze(1), w.transpose(1, 2).unsqueeze(-1)
            state = None if first is None else first.unsqueeze(-1)
            out, last = recurrent(GatedScan(q.unsqueeze(1), k.unsqueeze(1), v, logs, state))
            return out.squeeze(-1).transpose(1, 2), last.squeeze(-1)

        return tuple(gradients_again(plain, saved, (grad, grad_last)))
    grad = torch.zeros_like(saved[0]) if grad is None else grad
    shared = ctx.needs_input_grad[3] or ctx.needs_input_grad[4]
    *given, first = _backward(grad, grad_last, *saved, shared)
    return *given, None if saved[5] is None else first


scan_compiled.register_autograd(_rule, setup_context=_save)
