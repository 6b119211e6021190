"""Attention to every prefix in compiled C++, `prefix_attention.cpp`, as one operator of PyTorch.

Scores, values and outputs go by once, in whatever order batches, heads and tokens lie in memory.

Cost: 1 exponential and 3 E operations a token forward, 2 exponentials and 8 E operations backward. Live at once on each
thread E numbers, and for the gradients N + E.
"""

from ctypes import c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from mereo.core.kernels.again import gradients_again
from mereo.core.kernels.library import at, entry
from mereo.core.kernels.transforms import forward_mode

_forward = entry("mereo_prefix_attention", *[c_void_p] * 7, *[c_int64] * 5)
_gradients = entry("mereo_prefix_attention_backward", *[c_void_p] * 13, *[c_int64] * 5)


def _rows(x: Tensor) -> Tensor:
    """In float32, the entries of a row in sequence."""
    x = x.float()
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _like(x: Tensor) -> Tensor:
    """Room for what lies as the rows of x do."""
    return torch.empty_like(x) if x.stride(-1) == 1 or x.shape[-1] == 1 else x.new_empty(x.shape)


def _strides(*tensors: Tensor) -> Any:
    """How far batches, heads and tokens of each lie apart."""
    return (c_int64 * (3 * len(tensors)))(*(x.stride(axis) for x in tensors for axis in range(3)))


@torch.library.custom_op("mereo::prefix_attention", mutates_args=())
def prefixes_compiled(
    scores: Tensor, values: Tensor, top: Tensor, total: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Outputs, and the top, total and sums of the summary of all tokens.

    Shapes: scores (batch, heads, tokens), values (batch, heads, tokens, dim); of the summary before, float32 top and
        total (batch, heads) and sums (batch, heads, dim) -> outputs of the type and order of values, and its successor.
    """
    assert _forward is not None
    rows = _rows(values)
    out = torch.empty_like(rows)
    batch, heads, tokens, dim = rows.shape
    after = [x.clone(memory_format=torch.contiguous_format) for x in (top, total, sums)]
    given = scores.float().contiguous()
    _forward(
        *map(at, (given, rows, out)), _strides(rows, out), *map(at, after), batch, heads, tokens, dim,
        torch.get_num_threads(),
    )  # fmt: skip
    return out.to(values.dtype), after[0], after[1], after[2]


@prefixes_compiled.register_fake
def _(
    scores: Tensor, values: Tensor, top: Tensor, total: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _like(values), top.new_empty(top.shape), total.new_empty(total.shape), sums.new_empty(sums.shape)


@torch.library.custom_op("mereo::prefix_attention_backward", mutates_args=())
def _backward(
    grad: Tensor, grad_total: Tensor | None, grad_sums: Tensor | None, out: Tensor, scores: Tensor, values: Tensor,
    top: Tensor, total: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of scores, values, and the total and sums before."""
    assert _gradients is not None
    rows, out, grad = _rows(values), _rows(out), _rows(grad)
    batch, heads, tokens, dim = rows.shape
    given = [x.float().contiguous() for x in (scores, top, total)]
    of_scores, of_values = torch.empty_like(given[0]), torch.empty_like(rows)
    of_total, of_sums = torch.empty_like(given[2]), rows.new_empty(batch, heads, dim)
    last = [x if x is None else x.float().contiguous() for x in (grad_total, grad_sums)]
    _gradients(
        *map(at, (*given, rows, out, grad)), _strides(rows, out, grad, of_values),
        *map(at, (*last, of_scores, of_values, of_total, of_sums)), batch, heads, tokens, dim,
        torch.get_num_threads(),
    )  # fmt: skip
    return of_scores.to(scores.dtype), of_values.to(values.dtype), of_total, of_sums


@_backward.register_fake
def _(
    grad: Tensor, grad_total: Tensor | None, grad_sums: Tensor | None, out: Tensor, scores: Tensor, values: Tensor,
    top: Tensor, total: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    sums = values.new_empty((*total.shape, values.shape[-1]), dtype=total.dtype)
    return scores.new_empty(scores.shape), _like(values), total.new_empty(total.shape), sums


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, output[0])
    ctx.set_materialize_grads(False)


def _rule(
    ctx: Any, grad: Tensor | None, grad_top: Tensor | None, grad_total: Tensor | None, grad_sums: Tensor | None
) -> tuple[Any, ...]:
    *given, out = ctx.saved_tensors
    grads = (grad, grad_total, grad_sums)
    if all(each is None for each in grads):
        return (None,) * 5
    if torch.is_grad_enabled() or forward_mode():
        from mereo.core.kernels.prefix_attention import Prefixes, Summary, blocks

        def plain(scores: Tensor, values: Tensor, *before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            made, last = blocks(Prefixes(scores, values, Summary(*before)))
            return made, last.total, last.values

        return tuple(gradients_again(plain, given, grads))
    scores, values, top, total, _ = given
    grad = torch.zeros_like(values) if grad is None else grad
    ds, dv, d_total, d_sums = _backward(grad, grad_total, grad_sums, out, scores, values, top, total)
    return ds, dv, None, d_total, d_sums


prefixes_compiled.register_autograd(_rule, setup_context=_save)
