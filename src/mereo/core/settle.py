"""settle: the loop of every iteration: routing, associative memories, top-down attention, predictive coding."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

import torch
from torch import Tensor

from mereo.errors import UsageError

State = TypeVar("State")
Item = TypeVar("Item")


@overload
def settle(step: Callable[[State], State], state: State, *, steps: int, tolerance: float | None = None) -> State: ...
@overload
def settle(
    step: Callable[[State, Item], State], state: State, *, steps: Iterable[Item], tolerance: float | None = None
) -> State: ...


def settle(step: Callable[..., Any], state: Any, *, steps: int | Iterable[Any], tolerance: float | None = None) -> Any:
    """state <- step(state), `steps` times, or until it moves less than `tolerance`.

    Args:
        step: one update. If `steps` is a sequence, such as a schedule of temperatures, it also gets an item.
        state: the initial state, any value that `step` takes.
        steps: largest number of updates, 0 returns the state unchanged; or a sequence with an item for each step.
        tolerance: stop once the largest change of any entry is at most this; the state is then a tensor. It reads the
            data, so leave it None under torch.compile and when exporting.

    Returns:
        The last state; gradients flow through every step.
    """
    if isinstance(steps, int) and steps < 0:
        raise UsageError(f"steps is {steps}; it must be at least 0.")
    for arguments in [()] * steps if isinstance(steps, int) else ((item,) for item in steps):
        previous, state = state, step(state, *arguments)
        if tolerance is not None and _change(state, previous) <= tolerance:
            break
    return state


def _change(state: Tensor, previous: Tensor) -> float:
    return float(torch.max(torch.abs(state - previous)))
