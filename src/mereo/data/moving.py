"""Augmentations that move pixels together with masks and boxes: rotation, shift, crop, flip and zoom."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mereo.data.batch import Batch
from mereo.data.geometric import rotation
from mereo.data.motion import Affine, Mirror, Motion, Window
from mereo.data.operation import Operation, uniform_between, whole_between
from mereo.errors import UsageError

MOST_PIXELS = 2**20
NARROWEST = 3 / 4


@dataclass(frozen=True)
class Move(Operation):
    """An operation described by one motion, for images and their masks and boxes."""

    @abstractmethod
    def motion(self, parameters: Tensor, height: int, width: int) -> Motion:
        """The motion of images of this size, on the device of the parameters."""

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        return self.motion(parameters.to(images.device), images.shape[-2], images.shape[-1]).images(images)

    def apply_batch(self, batch: Batch, parameters: Tensor) -> Batch:
        height, width = batch.images.shape[-2:]
        return self.motion(parameters.to(batch.images.device), height, width).batch(batch)


@dataclass(frozen=True)
class Rotate(Move):
    """Rotation by an angle uniform in +-degrees; zeros fill the corners."""

    degrees: float
    name: ClassVar[str] = "rotate"
    usage: ClassVar[str] = "rotate=15"

    def __post_init__(self) -> None:
        if not 0 <= self.degrees <= 180:
            raise UsageError(f"rotate is {self.degrees}; it must be between 0 and 180 degrees.")

    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None) -> Tensor:
        return uniform_between(-self.degrees, self.degrees, count, generator)

    def motion(self, parameters: Tensor, height: int, width: int) -> Affine:
        return Affine(rotation(parameters[:, 0] * (math.pi / 180)))


@dataclass(frozen=True)
class Shift(Move):
    """Shift by whole pixels, uniform in +-pixels on each axis; zeros enter."""

    pixels: int
    name: ClassVar[str] = "shift"
    usage: ClassVar[str] = "shift=2"

    def __post_init__(self) -> None:
        if not 0 <= self.pixels < MOST_PIXELS:
            raise UsageError(f"shift is {self.pixels}; it must be at least 0 pixels and below {MOST_PIXELS:,}.")

    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None) -> Tensor:
        return whole_between(-self.pixels, self.pixels, count, generator)

    def motion(self, parameters: Tensor, height: int, width: int) -> Window:
        return Window(-parameters, (height, width))


@dataclass(frozen=True)
class Crop(Shift):
    """Zero padding on every side, then a random crop back to the size: the same as a shift by up to the padding."""

    name: ClassVar[str] = "crop"
    usage: ClassVar[str] = "crop=4"

    def __post_init__(self) -> None:
        if not 0 <= self.pixels < MOST_PIXELS:
            raise UsageError(
                f"crop is {self.pixels}; it must be a padding of at least 0 pixels and below {MOST_PIXELS:,}."
            )


@dataclass(frozen=True)
class Flip(Move):
    """A horizontal flip with probability one half."""

    name: ClassVar[str] = "flip"
    usage: ClassVar[str] = "flip"

    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None) -> Tensor:
        return torch.randint(0, 2, (count, 1), generator=generator)

    def motion(self, parameters: Tensor, height: int, width: int) -> Mirror:
        return Mirror(parameters[:, 0].bool())


@dataclass(frozen=True)
class Zoom(Move):
    """A part of the image enlarged to its full size: its share of the area uniform in [low, high), its sides' ratio
    log-uniform in [3/4, 4/3], its place uniform (the random resized crop of Inception, arXiv 1409.4842).

    Deviates: a part that does not fit is shortened to the side of the image, where torchvision draws again.
    """

    low: float
    high: float
    name: ClassVar[str] = "zoom"
    usage: ClassVar[str] = "zoom=0.25:1"

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high <= 1:
            raise UsageError(
                f"zoom is {self.low:g}:{self.high:g}; it must be two shares of the area, 0 < low <= high <= 1."
            )

    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None) -> Tensor:
        """-> float32 (count, 4): the factors of both sides, and the place of the part, (width, height) each."""
        drawn = torch.rand(count, 4, generator=generator)
        share = self.low + (self.high - self.low) * drawn[:, 0]
        # The ratio of width to height in pixels, over the ratio of the image: factors count its sides.
        ratio = (math.log(NARROWEST) * (2 * drawn[:, 1] - 1)).exp() * (height / width)
        factors = torch.stack([(share * ratio).sqrt(), (share / ratio).sqrt()], dim=1).clamp(max=1)
        places = (1 - factors) * (drawn[:, 2:] - 0.5)
        return torch.cat([factors, places], dim=1)

    def motion(self, parameters: Tensor, height: int, width: int) -> Affine:
        sides = torch.tensor([width, height], dtype=parameters.dtype, device=parameters.device)
        return Affine(torch.diag_embed(parameters[:, :2]), parameters[:, 2:] * sides, outside="border")
