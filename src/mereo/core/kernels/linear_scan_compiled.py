"""A decaying scan in compiled C++, `linear_scan.cpp`, as one operator of PyTorch; its gradients are the same scan.

With lam the decay of a head and G the gradient of the outputs, [a, b, c] the scan of queries a, keys b and values c:

    out = [q, k, v],    dq = [G, v, k],    dk = [v, G, q] from the end,    dv = [k, q, G] from the end

The state before the first token and its gradient take the places of each other. Nothing but the arguments is saved.

Cost: 2 N (2 D E + VL (D + E)) FLOPs a head forward, VL the floats of a vector, and three times that backward. Live at
once: one state on each thread.
"""

from ctypes import c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from mereo.core.kernels.again import gradients_again
from mereo.core.kernels.library import at, entry
from mereo.core.kernels.transforms import forward_mode

_run = entry("mereo_linear_scan", *[c_void_p] * 8, *[c_int64] * 8)


def _rows(x: Tensor) -> Tensor:
    """In float32, the entries of a row in sequence."""
    x = x.float()
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _scan(
    q: Tensor, k: Tensor, v: Tensor, first: Tensor | None, slopes: Tensor, *, reverse: bool, undecayed: bool
) -> tuple[Tensor, Tensor]:
    """Outputs, and the state behind the last token; `first` is the state before the first one, decayed once."""
    assert _run is not None
    q, k, v = _rows(q), _rows(k), _rows(v)
    batch, heads, tokens, dim = q.shape
    pose = v.shape[-1]
    out, last = q.new_empty(batch, heads, tokens, pose), q.new_empty(batch, heads, dim, pose)
    first = None if first is None else first.float().contiguous()
    slopes = slopes.double().contiguous()
    if not last.numel() or not tokens:
        return out.zero_(), last.zero_()
    strides = (c_int64 * 9)(*(x.stride(axis) for x in (q, k, v) for axis in range(3)))
    pointers = map(at, (q, k, v, first, slopes, out, last))
    sizes = (batch, heads, tokens, dim, pose, int(reverse), int(undecayed), torch.get_num_threads())
    _run(*pointers, strides, *sizes)
    return out, last


def _decay(slopes: Tensor) -> Tensor:
    """lam of each head, to multiply a state by."""
    return (-slopes.double()).exp().float().view(-1, 1, 1)


@torch.library.custom_op("mereo::linear_scan", mutates_args=())
def scan_compiled(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """out_t = q_t^T S_t with S_t = exp(-slope) S_(t-1) + k_t v_t^T, and the last S.

    Shapes: q, k (batch, heads, tokens, dim), v (batch, heads, tokens, pose), slopes (heads,), state (batch, heads, dim,
        pose) -> (batch, heads, tokens, pose) of the type of v, float32 (batch, heads, dim, pose).
    """
    if not q.shape[2]:
        shape = (*q.shape[:2], q.shape[3], v.shape[3])
        return v.new_empty(v.shape), v.new_zeros(shape, dtype=torch.float32) if state is None else state.float().clone()
    first = None if state is None else state.float() * _decay(slopes)
    out, last = _scan(q, k, v, first, slopes, reverse=False, undecayed=True)
    return out.to(v.dtype), last


@scan_compiled.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    return v.new_empty(v.shape), q.new_empty((*q.shape[:2], q.shape[3], v.shape[3]), dtype=torch.float32)


@torch.library.custom_op("mereo::linear_scan_backward", mutates_args=())
def _backward(
    grad: Tensor, grad_last: Tensor | None, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and the state; the last is empty without a state."""
    first = None if state is None else (state.float() * _decay(slopes)).transpose(2, 3)
    turned = None if grad_last is None else grad_last.transpose(2, 3)
    dq, _ = _scan(grad, v, k, first, slopes, reverse=False, undecayed=False)
    dk, _ = _scan(v, grad, q, turned, slopes, reverse=True, undecayed=False)
    dv, d_state = _scan(k, q, grad, grad_last, slopes, reverse=True, undecayed=False)
    given = d_state.to(state.dtype) if state is not None else grad.new_empty(0)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), given


@_backward.register_fake
def _(
    grad: Tensor, grad_last: Tensor | None, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, state: Tensor | None
) -> tuple[Tensor, ...]:
    return *(x.new_empty(x.shape) for x in (q, k, v)), grad.new_empty(0) if state is None else state.new_empty(
        state.shape
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs)
    ctx.set_materialize_grads(False)


def _rule(ctx: Any, grad: Tensor | None, grad_last: Tensor | None) -> tuple[Any, ...]:
    q, k, v, slopes, state = ctx.saved_tensors
    if grad is None and grad_last is None:
        return (None,) * 5
    if torch.is_grad_enabled() or forward_mode() or not q.shape[2]:
        from mereo.core.kernels.linear_scan import BLOCK, chunked

        def plain(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
            return chunked(q, k, v, slopes, state, BLOCK)

        return tuple(gradients_again(plain, ctx.saved_tensors, (grad, grad_last)))
    grad = torch.zeros_like(v) if grad is None else grad
    dq, dk, dv, d_state = _backward(grad, grad_last, q, k, v, slopes, state)
    return dq, dk, dv, None, None if state is None else d_state


scan_compiled.register_autograd(_rule, setup_context=_save)
