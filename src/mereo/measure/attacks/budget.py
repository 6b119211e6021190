"""The limits of an attack: at most epsilon from every pixel of the image, and within [0, 1]."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Budget:
    """The limits and the settings of one attack.

    Attributes:
        epsilon: largest change of a pixel, in units of the full range.
        steps: gradient steps, or queries.
        step_size: change of a pixel in one step; None for the attack's own.
        generator: of all random choices, on the CPU.
        watch: called with the losses (batch,) at every step.
    """

    epsilon: float
    steps: int
    step_size: float | None
    generator: torch.Generator
    watch: Callable[[Tensor], None] | None = None


def project(images: Tensor, clean: Tensor, epsilon: float) -> Tensor:
    """The nearest point of the ball and of the range.

    P(x) = clip(clip(x, clean - epsilon, clean + epsilon), 0, 1)

    Args:
        images: anything.
        clean: centre of the ball, in [0, 1].
        epsilon: its radius in the maximum norm.

    Shapes: (batch, channels, height, width) twice -> the same.
    """
    return images.clamp(clean - epsilon, clean + epsilon).clamp(0, 1)


def uniform(clean: Tensor, generator: torch.Generator) -> Tensor:
    """Numbers uniform in [-1, 1), like `clean`; the same on every device."""
    return 2 * torch.rand(clean.shape, generator=generator).to(clean) - 1


def random_start(clean: Tensor, budget: Budget) -> Tensor:
    """A point uniform in the ball, clipped to [0, 1]: like `clean`."""
    return project(clean + budget.epsilon * uniform(clean, budget.generator), clean, budget.epsilon)
