"""Neighbourhood attention in compiled C++, `neighborhood.cpp`, as one operator of PyTorch with its gradient.

Cost: 2 N W (D + E) FLOPs a head for N tokens with windows of W, times the keys of a tile's box over the window, about
2 for 7 x 7. Extra memory at any time: the scores of one tile on each thread, and a vector of biases for each head and
place of a key next to a tile. Saved for the backward pass: the arguments, the output and the log of each sum, N numbers
a head.
"""

from collections.abc import Sequence
from ctypes import c_float, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from mereo.core.coupling import Coupling
from mereo.core.kernels.again import gradients_again
from mereo.core.kernels.library import at, entry
from mereo.core.kernels.transforms import forward_mode
from mereo.core.topology import Neighborhood
from mereo.core.topology.neighborhood import MOST_AXES

_SIZES = (c_void_p, *[c_int64] * 5, c_float)
_forward = entry("mereo_neighborhood", *[c_void_p] * 6, *_SIZES)
_gradients = entry("mereo_neighborhood_gradients", *[c_void_p] * 12, *_SIZES)


def numbers_of(topology: Neighborhood) -> list[int]:
    """Length, window, stride, dilation and causality of each of three axes; an axis that is not there has one token."""
    lines = [(x.length, x.window, x.stride, x.dilation, int(x.causal)) for x in topology.lines]
    lines += [(1, 1, 1, 1, 0)] * (MOST_AXES - len(lines))
    return [number for line in lines for number in line]


def _topology(numbers: Sequence[int]) -> Neighborhood:
    """The inverse of `numbers_of`."""
    lines = [line for i in range(MOST_AXES) if (line := tuple(numbers[5 * i : 5 * i + 5])) != (1, 1, 1, 1, 0)]
    length, window, stride, dilation, causal = zip(*lines, strict=True)
    return Neighborhood(length, window, stride, dilation, tuple(map(bool, causal)))


def _sizes(q: Tensor, v: Tensor, numbers: Sequence[int], scale: float) -> tuple[Any, ...]:
    batch, _, heads, dim = q.shape
    lines = (c_int64 * len(numbers))(*numbers)
    return lines, batch, heads, dim, v.shape[3], torch.get_num_threads(), scale


def _wide(x: Tensor) -> Tensor:
    return x.float().contiguous()


@torch.library.custom_op("mereo::neighborhood", mutates_args=())
def attend_compiled(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, numbers: Sequence[int], scale: float
) -> tuple[Tensor, Tensor]:
    """The output of each query, and log sum exp of its scores.

    Shapes: q, k (batch, tokens, heads, dim), v (batch, tokens, heads, pose), bias (heads, relative positions) or None
    -> (batch, tokens, heads, pose) of the type of q, float32 (batch, tokens, heads).
    """
    assert _forward is not None
    q, k, v, dtype = _wide(q), _wide(k), _wide(v), q.dtype
    bias = None if bias is None else _wide(bias)
    out, lse = q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3])
    if out.numel():
        _forward(*map(at, (q, k, v, bias, out, lse)), *_sizes(q, v, numbers, scale))
    return out.to(dtype), lse


@attend_compiled.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, numbers: Sequence[int], scale: float
) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("mereo::neighborhood_backward", mutates_args=())
def _backward(
    grad: Tensor,
    grad_lse: Tensor | None,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    numbers: Sequence[int],
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and of the biases; the last one is empty without biases."""
    assert _gradients is not None
    types = [x.dtype for x in (q, k, v, q if bias is None else bias)]
    q, k, v, grad, out = map(_wide, (q, k, v, grad, out))
    bias = None if bias is None else _wide(bias)
    given = torch.zeros_like(lse) if grad_lse is None else _wide(grad_lse)
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    dbias = q.new_empty(0) if bias is None else torch.zeros_like(bias)
    if out.numel():
        found = (dq, dk, dv, None if bias is None else dbias)
        _gradients(*map(at, (q, k, v, bias, grad, given, out, lse, *found)), *_sizes(q, v, numbers, scale))
    dq, dk, dv, dbias = (x.to(dtype) for x, dtype in zip((dq, dk, dv, dbias), types, strict=True))
    return dq, dk, dv, dbias


@_backward.register_fake
def _(grad: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor, *given: Any) -> tuple[Tensor, ...]:
    q, bias = given[0], given[3]
    return *(x.new_empty(x.shape) for x in given[:3]), q.new_empty(0 if bias is None else bias.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, bias, ctx.numbers, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, bias, *output)
    ctx.set_materialize_grads(False)


def _rule(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    q, k, v, bias, out, lse = ctx.saved_tensors
    if grad is None and grad_lse is None:
        return (None,) * 6
    if torch.is_grad_enabled() or forward_mode():
        from mereo.core.kernels.exchange import Exchange, exchange

        def plain(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            rest = (_topology(ctx.numbers), Coupling("senders"), ctx.scale, bias)
            out, lse = exchange(Exchange(q, k, v, *rest, with_lse=True), "tiles")
            assert lse is not None
            return out.transpose(1, 2), lse.transpose(1, 2)

        return *gradients_again(plain, (q, k, v, bias), (grad, grad_lse)), None, None
    grad = torch.zeros_like(out) if grad is None else grad
    *found, of_bias = _backward(grad, grad_lse, out, lse, q, k, v, bias, ctx.numbers, ctx.scale)
    return *found, None if bias is None else of_bias, None, None


attend_compiled.register_autograd(_rule, setup_context=_save)


def run(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, topology: Neighborhood, scale: float, with_lse: bool
) -> tuple[Tensor, Tensor | None]:
    """The output of each query, and log sum exp of its scores if it is wanted.

    Shapes: q, k, v (batch, heads, tokens, dim or pose), k and v with the senders behind the grid
        -> (batch, heads, tokens, pose), (batch, heads, tokens).
    """
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    tokens = topology.tokens
    out, lse = attend_compiled(q, k[:, :tokens], v[:, :tokens], bias, numbers_of(topology), scale)
    if topology.extra:
        # Two softmaxes over different keys are joined by the sums of their weights.
        more_k, more_v = k[:, tokens:].float(), v[:, tokens:].float()
        scores = torch.einsum("bnhd,bmhd->bnhm", q.float() * scale, more_k)
        top = torch.maximum(lse, scores.amax(-1)).detach()
        ours, theirs = (lse - top).exp(), (scores - top.unsqueeze(-1)).exp()
        total = ours + theirs.sum(-1)
        joined = out.float() * ours.unsqueeze(-1) + torch.einsum("bnhm,bmhe->bnhe", theirs, more_v)
        out, lse = (joined / total.unsqueeze(-1)).to(out.dtype), top + total.log()
    return out.transpose(1, 2), lse.transpose(1, 2) if with_lse else None
