"""settle: the fixed-step loop shared by iterated routing, associative memories and predictive coding."""

from collections.abc import Callable

import torch
from torch import Tensor

from mereo.errors import UsageError


def settle(step: Callable[[Tensor], Tensor], state: Tensor, *, steps: int, tolerance: float | None = None) -> Tensor:
    """state <- step(state), `steps` times, or until it moves less than `tolerance`.

    Args:
        step: one update.
        state: where it starts.
        steps: how often at the most; 0 returns the state as it was.
        tolerance: stop once the largest change of any entry is at most this. It reads the data, so leave it None
            under torch.compile and when exporting.

    Returns:
        The last state; gradients flow through every step.
    """
    if steps < 0:
        raise UsageError(f"steps is {steps}; it must be at least 0.")
    for _ in range(steps):
        previous, state = state, step(state)
        if tolerance is not None and torch.max(torch.abs(state - previous)) <= tolerance:
            break
    return state
