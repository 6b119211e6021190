"""Calls our operators directly while nothing watches, differentiates or compiles them.

The first call of an operator through PyTorch's dispatcher imports PyTorch's compiler, which takes longer than
everything else that classifying one image takes. A process that has not imported the compiler compiles nothing.
"""

import sys
from typing import Any

import torch
from torch import Tensor

from mereo.core.kernels.transforms import transformed

_COMPILER = "torch._dynamo"


def _plain(x: Any) -> bool:
    return not isinstance(x, Tensor) or (
        type(x) in (Tensor, torch.nn.Parameter)
        and x.device.type in ("cpu", "cuda")
        and not (x.requires_grad and torch.is_grad_enabled())
        and not torch.is_autocast_enabled(x.device.type)
    )


def direct(operator: Any, *inputs: Any) -> Any:
    """operator(*inputs), without the dispatcher where that makes no difference.

    Args:
        operator: made by `torch.library.custom_op`.
        inputs: of the operator.
    """
    if torch.compiler.is_compiling() or _COMPILER in sys.modules or transformed():
        return operator(*inputs)
    if torch._C._len_torch_dispatch_stack() or torch._C._is_tracing() or not all(map(_plain, inputs)):
        return operator(*inputs)
    return operator._init_fn(*inputs)
