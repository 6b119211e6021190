"""Augmentations that change the values of pixels and leave them where they are. Results are clipped to [0, 1]."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mereo.data.operation import Operation, uniform_between
from mereo.errors import UsageError


@dataclass(frozen=True)
class Brightness(Operation):
    """x + d with d uniform in +-amount, in units of the full range [0, 1].

    Deviates: the smallNORB recipe of Efficient-CapsNet adds +-2 to images that were standardised per channel. That is
    +-2 standard deviations of the pixels, so amount = 2 * std of the dataset says the same before normalisation. The
    clipping keeps images valid as targets of a decoder; the recipe does not clip.
    """

    amount: float
    name: ClassVar[str] = "brightness"
    usage: ClassVar[str] = "brightness=0.2"

    def __post_init__(self) -> None:
        if not 0 <= self.amount <= 1:
            raise UsageError(f"brightness is {self.amount}; it must be between 0 and 1, the range of a pixel.")

    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None) -> Tensor:
        return uniform_between(-self.amount, self.amount, count, generator)

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        return (images + parameters.to(images.device).view(-1, 1, 1, 1)).clamp(0, 1)


@dataclass(frozen=True)
class Contrast(Operation):
    """m + f (x - m) with f uniform in [low, high) and m the mean of each channel of each image."""

    low: float
    high: float
    name: ClassVar[str] = "contrast"
    usage: ClassVar[str] = "contrast=0.5:1.5"

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high < math.inf:
            raise UsageError(f"contrast is {self.low:g}:{self.high:g}; it must be two factors, 0 <= low <= high.")

    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None) -> Tensor:
        return uniform_between(self.low, self.high, count, generator)

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        mean = images.mean(dim=(2, 3), keepdim=True)
        return torch.lerp(mean, images, parameters.to(images.device).view(-1, 1, 1, 1)).clamp(0, 1)
