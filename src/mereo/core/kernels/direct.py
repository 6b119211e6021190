"""Calls our operators directly while nothing watches, differentiates or compiles them.

The first call of an operator through PyTorch's dispatcher imports PyTorch's compiler, which takes longer than
everything else that classifying one image takes. A process that has not imported the compiler compiles nothing.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import CustomOpDef  # type: ignore[attr-defined]

from mereo.core.kernels.transforms import operations_are_watched, transformed

_COMPILER = "torch._dynamo"
_FUNCTIONS: dict[Any, Callable[..., Any]] = {}
"""The function of each operator."""


def direct_operator(name: str) -> Callable[[Callable[..., Any]], CustomOpDef]:
    """Make a function an operator of PyTorch, as `torch.library.custom_op` does, that `direct` may call."""

    def register(function: Callable[..., Any]) -> CustomOpDef:
        operator = torch.library.custom_op(name, mutates_args=())(function)
        _FUNCTIONS[operator] = function
        return operator

    return register


def _plain(x: Any) -> bool:
    return not isinstance(x, Tensor) or (
        type(x) in (Tensor, torch.nn.Parameter)
        and x.device.type in ("cpu", "cuda")
        and not (x.requires_grad and torch.is_grad_enabled())
        and not torch.is_autocast_enabled(x.device.type)
    )


def direct(operator: Any, *inputs: Any) -> Any:
    """operator(*inputs), without the dispatcher if that makes no difference.

    Args:
        operator: made by `direct_operator`.
        inputs: of the operator.
    """
    if torch.compiler.is_compiling() or _COMPILER in sys.modules or transformed():
        return operator(*inputs)
    if operations_are_watched() or not all(map(_plain, inputs)):
        return operator(*inputs)
    return _FUNCTIONS[operator](*inputs)
