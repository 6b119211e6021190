"""Augmentations that change the values of pixels without moving them. Results are clipped to [0, 1]."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mereo.data.counter import normal, uniform
from mereo.data.operation import Operation, uniform_between
from mereo.errors import UsageError


@dataclass(frozen=True)
class _Amount(Operation):
    """An operation by a number that is uniform in +-amount for each image."""

    amount: float
    most: ClassVar[tuple[float, str]] = (1, "the range of a pixel")
    """Largest amount, and its meaning."""

    def __post_init__(self) -> None:
        most, what = self.most
        if not 0 <= self.amount <= most:
            raise UsageError(f"{self.name} is {self.amount}; it must be between 0 and {most:g}, {what}.")

    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None) -> Tensor:
        return uniform_between(-self.amount, self.amount, count, generator)


@dataclass(frozen=True)
class _Factor(Operation):
    """An operation by a factor that is uniform in [low, high) for each image."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high < math.inf:
            raise UsageError(f"{self.name} is {self.low:g}:{self.high:g}; it must be two factors, 0 <= low <= high.")

    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None) -> Tensor:
        return uniform_between(self.low, self.high, count, generator)


@dataclass(frozen=True)
class Brightness(_Amount):
    """x + d with d uniform in +-amount, in units of the full range [0, 1].

    Deviates: the smallNORB recipe of Efficient-CapsNet adds +-2 to images that were standardised per channel. That is
    +-2 standard deviations of the pixels, so amount = 2 * std of the data set is the same before normalisation. The
    clipping keeps images valid as targets of a decoder; the recipe does not clip.
    """

    name: ClassVar[str] = "brightness"
    usage: ClassVar[str] = "brightness=0.2"

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        return (images + parameters.to(images.device).view(-1, 1, 1, 1)).clamp(0, 1)


@dataclass(frozen=True)
class Contrast(_Factor):
    """m + f (x - m) with f uniform in [low, high) and m the mean of each channel of each image."""

    name: ClassVar[str] = "contrast"
    usage: ClassVar[str] = "contrast=0.5:1.5"

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        mean = images.mean(dim=(2, 3), keepdim=True)
        return torch.lerp(mean, images, parameters.to(images.device).view(-1, 1, 1, 1)).clamp(0, 1)


def grey_of(images: Tensor) -> Tensor:
    """Luma 0.299 R + 0.587 G + 0.114 B. Shapes: (n, 3, h, w) -> (n, 1, h, w)."""
    weights = torch.tensor([0.299, 0.587, 0.114], device=images.device).view(1, 3, 1, 1)
    return (images * weights).sum(dim=1, keepdim=True)


@dataclass(frozen=True)
class Saturation(_Factor):
    """g + f (x - g) with f uniform in [low, high) and g the luma of each pixel. Grey images are unchanged."""

    name: ClassVar[str] = "saturation"
    usage: ClassVar[str] = "saturation=0.5:1.5"

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        if images.shape[1] != 3:
            return images
        return torch.lerp(grey_of(images), images, parameters.to(images.device).view(-1, 1, 1, 1)).clamp(0, 1)


@dataclass(frozen=True)
class Hue(_Amount):
    """The hue turned by an angle uniform in +-amount, in units of the full circle. Grey images are unchanged.

        v = max, s = max - min;  out_k = v - s max(0, min(t, 4 - t, 1)),  t = (k + 6 (hue + d)) mod 6,  k = 5, 3, 1

    torchvision uses one angle for a batch; here every image has its own.
    """

    name: ClassVar[str] = "hue"
    usage: ClassVar[str] = "hue=0.1"
    most: ClassVar[tuple[float, str]] = (0.5, "half of the circle")

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        if images.shape[1] != 3:
            return images
        red, green, blue = images.unbind(1)
        value, place = images.max(dim=1)
        spread = value - images.amin(dim=1)
        safe = torch.where(spread > 0, spread, 1)
        sixth = torch.stack([(green - blue) / safe, (blue - red) / safe + 2, (red - green) / safe + 4], dim=1)
        hue = sixth.gather(1, place.unsqueeze(1)) + 6 * parameters.to(images.device).view(-1, 1, 1, 1)
        t = (torch.tensor([5.0, 3.0, 1.0], device=images.device).view(1, 3, 1, 1) + hue) % 6
        falls = t.minimum(4 - t).clamp(0, 1)
        return (value.unsqueeze(1) - spread.unsqueeze(1) * falls).clamp(0, 1)


@dataclass(frozen=True)
class Noise(_Amount):
    """x + s z with z from the normal distribution for each value and s uniform in [0, amount) for each image."""

    name: ClassVar[str] = "noise"
    usage: ClassVar[str] = "noise=0.1"

    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None) -> Tensor:
        """-> float64 (count, 2): the standard deviation and a number from which the noise of the image follows."""
        deviations = uniform_between(0, self.amount, count, generator).double()
        return torch.cat([deviations, torch.randint(2**31, (count, 1), generator=generator).double()], 1)

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        uniforms = uniform(0, parameters[:, 1].long(), images[0].numel())
        noise = normal(uniforms).to(images).view_as(images)
        return (images + parameters[:, :1, None, None].to(images) * noise).clamp(0, 1)
