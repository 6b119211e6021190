"""Tables of the ways to execute one computation, and the choice among them.

A row is (function, why it cannot run a call: None if it can), under its name; the preferred comes first.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from mereo.core.kernels import library
from mereo.core.kernels.transforms import fallback_reason
from mereo.errors import UsageError, check_choice

Call = TypeVar("Call")
Result = TypeVar("Result")

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""Types of tensors for which computing in float32 loses nothing."""


def cannot_run_here(method: str, reason: str, always: str) -> UsageError:
    """The refusal of a method that was asked for by its name.

    Args:
        always: the method that runs wherever there is one.
    """
    return UsageError(f"method is {method!r}, which cannot run here: {reason}; use 'auto' or {always!r}.")


def execute(
    methods: Mapping[str, tuple[Callable[[Call], Result], Callable[[Call], str | None]]],
    call: Call,
    method: str,
    *,
    always: str,
) -> Result:
    """The result of a call, by the first method that can run it.

    Args:
        methods: the table.
        call: the argument of the functions of the table.
        method: "auto", or a name of the table.
        always: the method that runs wherever there is one, for messages.
    """
    if method == "auto":  # on the way of every call, so without a look at the names
        for run, cannot in methods.values():
            if cannot(call) is None:
                return run(call)
    check_choice("method", method, ["auto", *methods])
    run, cannot = methods[method]
    if (reason := cannot(call)) is not None:
        raise cannot_run_here(method, reason, always)
    return run(call)


def check_state(state: Tensor | None, *sizes: int) -> None:
    """UsageError unless the state before the first token has the sizes of the call: other memory would be read."""
    if state is not None and tuple(state.shape) != sizes:
        raise UsageError(f"state is {tuple(state.shape)}; it must be {sizes}, (batch, heads, dim, pose).")


def compiled_cannot(*tensors: Tensor) -> str | None:
    """Why a compiled pass that computes in float32 on a CPU cannot take these tensors; None if it can."""
    if library.missing is not None:
        return library.missing
    for x in tensors:
        if x.device.type != "cpu" or x.dtype not in FLOATS:
            return f"it computes in float32 on a CPU, and a tensor is {x.dtype} on {x.device}"
    return fallback_reason()
