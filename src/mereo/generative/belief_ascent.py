"""Test-time optimisation: ascent on the bound of each image with respect to the belief about it alone.

Source: Smith, Schut, Gal, van der Wilk 2020, arXiv:2004.03553.
Cost: a bound and its gradient a step.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mereo.errors import UsageError, check_positive


def ascend(
    bound: Callable[..., Tensor], start: Sequence[Tensor], steps: int, lr: float
) -> tuple[list[Tensor], Tensor, Tensor]:
    """The best belief of each image on the path of Adam, its bound, and the bounds along the path.

    Args:
        bound: of the parts of a belief, each (batch, ...) -> (batch,); deterministic.
        start: the parts where Adam begins.
        steps: of Adam, at least 1.
        lr: its rate.

    Shapes: -> parts as `start`, their bound (batch,), bounds (batch, steps + 1).
    """
    check_positive(lr=lr)
    if not 1 <= steps <= 100_000:
        raise UsageError(f"steps is {steps}; it must be at least 1 and at most 100,000.")
    with torch.enable_grad():
        parts = [part.detach().clone().requires_grad_() for part in start]
        optimiser = torch.optim.Adam(parts, lr=lr)
        best, bounds = [part.detach().clone() for part in parts], []
        highest = torch.empty(0)
        for step in range(steps + 1):
            value = bound(*parts)
            now = value.detach()
            better = now > highest if step else torch.ones_like(now, dtype=torch.bool)
            highest = torch.where(better, now, highest) if step else now
            for kept, part in zip(best, parts, strict=True):
                kept[better] = part.detach()[better]
            bounds.append(now)
            if step < steps:
                for part, gradient in zip(parts, torch.autograd.grad(-value.sum(), parts), strict=True):
                    part.grad = gradient
                optimiser.step()
    return best, highest, torch.stack(bounds, 1)
