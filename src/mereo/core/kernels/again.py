"""Gradients that can be differentiated again, for operations whose own gradients cannot.

A compiled operator, ours or PyTorch's fused attention, has a backward pass and no derivative of that. A backward pass
with create_graph=True therefore goes through the plain operations that it stands for.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mereo.core.kernels.transforms import fallback_reason

Tensors = Sequence[Tensor | None]


def gradients_again(run: Callable[..., Tensor | Tensors], tensors: Tensors, grads: Tensors) -> list[Tensor | None]:
    """Gradients of the outputs of run(*tensors) as functions of `tensors` and `grads`; None where none is needed.

    Args:
        run: the plain operations; returns a tensor or several.
        grads: one for each output, None for one that nothing depends on.
    """
    with torch.enable_grad():
        # One tensor may be given twice, or made of another one: each is an argument of its own here.
        apart = [x if x is None else x.view_as(x) for x in tensors]
        results = run(*apart)
        outputs = (results,) if isinstance(results, Tensor) else results
        pairs = [(x, g) for x, g in zip(outputs, grads, strict=True) if x is not None and g is not None]
        asking = [x for x in apart if x is not None and x.requires_grad]
        if not asking or not (pairs := [(x, g.to(x.dtype)) for x, g in pairs if x.requires_grad]):
            return [None] * len(apart)
        ours, theirs = zip(*pairs, strict=True)
        found = iter(torch.autograd.grad(ours, asking, theirs, create_graph=True, allow_unused=True))
    return [next(found) if x is not None and x.requires_grad else None for x in apart]


class _Again(torch.autograd.Function):
    """The computed value; its gradient is passed on as it is, or made anew if it will be differentiated again."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, run: Callable[..., Tensor], *tensors: Tensor | None) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(*tensors)
        return out.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if not torch.is_grad_enabled():
            return grads[0], None, *[None] * len(ctx.saved_tensors)
        return None, None, *gradients_again(ctx.run, ctx.saved_tensors, grads)


def twice_differentiable(out: Tensor, run: Callable[..., Tensor], *tensors: Tensor | None) -> Tensor:
    """`out`, made of `tensors` by an operation without second derivatives, with the derivatives of run(*tensors).

    A first gradient costs no more: only a backward pass with create_graph=True computes anything twice.
    """
    if not (torch.is_grad_enabled() and out.requires_grad):
        return out
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or fallback_reason() is not None:  # type: ignore[attr-defined]
        return out
    again: Tensor = _Again.apply(out, run, *tensors)
    return again
