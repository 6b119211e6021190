"""Attention to circles in compiled C++, `circle.cpp`, as one operator of PyTorch with its gradient.

Cost: 2 N P (D + E) FLOPs a head for N image tokens that attend to P each, times the senders in a tile's union over
the senders of one circle, about 1.5 at a radius of 8. Extra memory at any time: the scores of one tile on
each thread. Saved for the backward pass: the arguments, the output and the log of each sum, N numbers a head.
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
from mereo.core.topology import Circle
from mereo.core.topology.circle import ImageCircle

_SIZES = (c_void_p, c_void_p, *[c_int64] * 5, c_float)
_forward = entry("mereo_circle", *[c_void_p] * 5, *_SIZES)
_gradients = entry("mereo_circle_gradients", *[c_void_p] * 10, *_SIZES)

SCORES = 2**20
"""Scores to senders that everyone attends to which the backward pass holds at once."""


def numbers_of(circle: Circle) -> list[int]:
    """Rows, columns, text tokens, and the down factor, 0 for none."""
    return [*circle.grid, circle.text, circle.down_factor or 0]


def _circle(numbers: Sequence[int], radius: float) -> Circle:
    """The inverse of `numbers_of`."""
    rows, columns, text, factor = numbers
    return Circle((rows, columns), radius, text, factor or None)


def _sizes(q: Tensor, k: Tensor, v: Tensor, circle: Circle, scale: float) -> tuple[Any, ...]:
    batch, heads, _, dim = q.shape
    widths = circle.widths
    numbers = (*circle.grid, circle.text, k.shape[2], circle.reach)
    # Heads precede tokens, as images of one head each.
    sizes = (batch * heads, 1, dim, v.shape[3], torch.get_num_threads(), scale)
    return (c_int64 * 5)(*numbers), (c_int64 * len(widths))(*widths), *sizes


def _wide(x: Tensor) -> Tensor:
    return x.float().contiguous()


@torch.library.custom_op("mereo::circle", mutates_args=())
def attend_compiled(
    q: Tensor, k: Tensor, v: Tensor, numbers: Sequence[int], radius: float, scale: float
) -> tuple[Tensor, Tensor]:
    """The output of each image token, and log sum exp of its scores, which has no gradient.

    Shapes: q (batch, heads, image, dim), k (batch, heads, senders, dim), v (batch, heads, senders, pose), senders
        [text | image | blocks] -> (batch, heads, image, pose) of the type of q, float32 (batch, heads, image).
    """
    assert _forward is not None
    q, k, v, dtype = _wide(q), _wide(k), _wide(v), q.dtype
    out, lse = q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3])
    if out.numel():
        _forward(*map(at, (q, k, v, out, lse)), *_sizes(q, k, v, _circle(numbers, radius), scale))
    return out.to(dtype), lse


@attend_compiled.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("mereo::circle_backward", mutates_args=())
def _backward(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    numbers: Sequence[int],
    radius: float,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    assert _gradients is not None
    circle, types = _circle(numbers, radius), [x.dtype for x in (q, k, v)]
    q, k, v, grad, out = map(_wide, (q, k, v, grad, out))
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    if out.numel():
        tensors = (q, k, v, grad, torch.zeros_like(lse), out, lse, dq, dk, dv)
        _gradients(*map(at, tensors), *_sizes(q, k, v, circle, scale))
        _add_of_everyone(tensors, circle, scale)
    dq, dk, dv = (x.to(dtype) for x, dtype in zip((dq, dk, dv), types, strict=True))
    return dq, dk, dv


def _everyone(x: Tensor, circle: Circle) -> Tensor:
    """Senders that all image tokens attend to: those before and behind the image."""
    return torch.cat((x[:, :, : circle.text], x[:, :, circle.text + circle.image :]), 2)


def _add_of_everyone(tensors: tuple[Tensor, ...], circle: Circle, scale: float) -> None:
    """Add the gradients through the senders that every query attends to, a few queries at a time."""
    q, k, v, grad, _, out, lse, dq, dk, dv = tensors
    keys, values = _everyone(k, circle), _everyone(v, circle)
    if keys.shape[2] == 0:
        return
    d_keys, d_values = torch.zeros_like(keys), torch.zeros_like(values)
    mean = (grad * out).sum(-1)
    rows = max(SCORES // (keys.shape[:3].numel()), 1)
    for begin in range(0, q.shape[2], rows):
        some = slice(begin, begin + rows)
        queries, G = q[:, :, some] * scale, grad[:, :, some]
        shares = (queries @ keys.mT).sub_(lse[:, :, some, None]).clamp_(max=0).exp_()
        changes = (G @ values.mT).sub_(mean[:, :, some, None]).mul_(shares)
        dq[:, :, some].add_(changes @ keys, alpha=scale)
        d_keys += changes.mT @ queries
        d_values += shares.mT @ G
    for whole, part in ((dk, d_keys), (dv, d_values)):
        whole[:, :, : circle.text] = part[:, :, : circle.text]
        whole[:, :, circle.text + circle.image :] = part[:, :, circle.text :]


@_backward.register_fake
def _(grad: Tensor, out: Tensor, lse: Tensor, *tensors: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in tensors[:3])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, ctx.numbers, ctx.radius, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _rule(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    q, k, v, out, lse = ctx.saved_tensors
    if grad is None:
        return (None,) * 6
    if torch.is_grad_enabled() or forward_mode():
        from mereo.core.kernels.exchange import Exchange, exchange

        rest = (_circle(ctx.numbers, ctx.radius).of_image, Coupling("senders"), ctx.scale)
        plain = gradients_again(lambda q, k, v: exchange(Exchange(q, k, v, *rest), "tiles")[0], (q, k, v), [grad])
        return *plain, None, None, None
    return *_backward(grad, out, lse, q, k, v, ctx.numbers, ctx.radius, ctx.scale), None, None, None


attend_compiled.register_autograd(_rule, setup_context=_save)


def run(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, topology: ImageCircle, scale: float, with_lse: bool
) -> tuple[Tensor, Tensor | None]:
    """The output of each image token, and log sum exp of its scores, without a gradient, if it is wanted."""
    circle = topology.circle
    out, lse = attend_compiled(q, k, v, numbers_of(circle), float(circle.radius), scale)
    return out, lse if with_lse else None
