"""Augmentations that move pixels. Moves by whole pixels are exact gathers; rotation interpolates."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.data.operation import Operation, uniform_between, whole_between
from mereo.errors import UsageError

MOST_PIXELS = 2**20


def take_window(images: Tensor, corners: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut a window out of each image: out[n, c, y, x] = images[n, c, y + top_n, x + left_n], 0 outside the image.

    Cropping, shifting and padding are this one gather.

    Shapes: images (n, c, h, w), corners int64 (n, 2) of (top, left), any sign -> (n, c, *size).
    """
    count, channels, height, width = images.shape
    corners = corners.to(images.device, non_blocking=True)
    rows = corners[:, 0, None] + torch.arange(size[0], device=images.device)
    columns = corners[:, 1, None] + torch.arange(size[1], device=images.device)
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    places = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    flat = places.view(count, 1, size[0] * size[1]).expand(-1, channels, -1)
    window = images.reshape(count, channels, height * width).gather(2, flat).view(count, channels, *size)
    return window.masked_fill_(~inside.unsqueeze(1), 0)


def transform(images: Tensor, matrices: Tensor) -> Tensor:
    """Linear map about the centre, bilinear, zeros from outside: out(p) = images(M p), p in pixels from the centre.

    Shapes: images (n, c, h, w), matrices (n, 2, 2) acting on (x, y) -> (n, c, h, w).
    """
    if not len(images):  # grid_sample refuses an empty batch
        return images
    height, width = images.shape[-2:]
    # grid_sample counts in half sides, so that the off-diagonal entries carry the proportions of the image.
    sides = torch.tensor([[1.0, height / width], [width / height, 1.0]], device=images.device)
    theta = torch.cat([matrices * sides, torch.zeros_like(matrices[:, :, :1])], dim=2)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def rotation(radians: Tensor) -> Tensor:
    """(n,) -> (n, 2, 2) matrices [[cos, -sin], [sin, cos]]."""
    cosine, sine = radians.cos(), radians.sin()
    return torch.stack([cosine, -sine, sine, cosine], dim=-1).view(-1, 2, 2)


@dataclass(frozen=True)
class Rotate(Operation):
    """Rotation by an angle uniform in +-degrees; zeros enter at the corners."""

    degrees: float
    name: ClassVar[str] = "rotate"
    usage: ClassVar[str] = "rotate=15"

    def __post_init__(self) -> None:
        if not 0 <= self.degrees <= 180:
            raise UsageError(f"rotate is {self.degrees}; it must be between 0 and 180 degrees.")

    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None) -> Tensor:
        return uniform_between(-self.degrees, self.degrees, count, generator)

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        return transform(images, rotation(parameters[:, 0].to(images.device) * (math.pi / 180)))


@dataclass(frozen=True)
class Shift(Operation):
    """Shift by whole pixels, uniform in +-pixels on each axis; zeros enter."""

    pixels: int
    name: ClassVar[str] = "shift"
    usage: ClassVar[str] = "shift=2"

    def __post_init__(self) -> None:
        if not 0 <= self.pixels < MOST_PIXELS:
            raise UsageError(f"shift is {self.pixels}; it must be at least 0 pixels and below {MOST_PIXELS:,}.")

    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None) -> Tensor:
        return whole_between(-self.pixels, self.pixels, count, generator)

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        return take_window(images, -parameters, (images.shape[-2], images.shape[-1]))


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
class Flip(Operation):
    """Left and right exchanged, with probability one half."""

    name: ClassVar[str] = "flip"
    usage: ClassVar[str] = "flip"

    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None) -> Tensor:
        return torch.randint(0, 2, (count, 1), generator=generator)

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        flipped = parameters.to(images.device).bool().view(-1, 1, 1, 1)
        return torch.where(flipped, images.flip(-1), images)
