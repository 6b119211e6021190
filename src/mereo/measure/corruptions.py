"""Corruptions of growing severity: rotation, translation, occlusion, noise, blur.

Every random choice is a pure function of the seed and the image's place in its split: all networks get the same
corrupted images, whatever the batch size, and an image is rotated in the same direction at every severity. Lengths
are in percent of the image's side, so that images of different sizes are comparable.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.data.counter import normal, uniform
from mereo.data.geometric import rotation, take_window, transform
from mereo.errors import UsageError, unknown

Apply = Callable[[Tensor, float, Tensor], Tensor]


@dataclass(frozen=True)
class Corruption:
    """One way to corrupt images.

    Attributes:
        name: of the curve.
        unit: of the severity, for the axis of the picture.
        severities: of the curve, ascending from 0, which leaves images as they are.
        draws: random numbers an image needs; 0 for one a value of the image.
        apply: (images, severity, draws (batch, draws) in [0, 1)) -> images.
    """

    name: str
    unit: str
    severities: tuple[float, ...]
    draws: int
    apply: Apply

    def __call__(self, images: Tensor, severity: float, indices: Tensor, seed: int = 0) -> Tensor:
        """Corrupted images.

        Args:
            images: in [0, 1].
            severity: at least 0; 0 leaves the images unchanged.
            indices: places of the images in their split, from which their random numbers follow.
            seed: of the random numbers.

        Shapes: images (batch, channels, height, width), indices int64 (batch,) -> like images.
        """
        if not 0 <= severity < math.inf:
            raise UsageError(f"severity is {severity}; it must be at least 0.")
        if severity == 0:
            return images
        draws = uniform(seed, indices, self.draws or images[0].numel()).to(images.device, torch.float32)
        return self.apply(images, severity, draws).clamp(0, 1)


def rotate(images: Tensor, degrees: float, draws: Tensor) -> Tensor:
    """Rotated by the angle in a random direction; zeros fill the corners."""
    signs = torch.where(draws[:, 0] < 0.5, -1.0, 1.0)
    return transform(images, rotation(signs * math.radians(degrees)))


def translate(images: Tensor, percent: float, draws: Tensor) -> Tensor:
    """Shifted by that distance in a random direction, by whole pixels; zeros fill the border."""
    height, width = images.shape[-2:]
    angle = 2 * math.pi * draws[:, 0]
    corners = torch.stack([height * angle.sin(), width * angle.cos()], 1) * (percent / 100)
    return take_window(images, corners.round().long(), (height, width))


def occlude(images: Tensor, percent: float, draws: Tensor) -> Tensor:
    """A grey rectangle of that fraction of both sides, at a random position inside the image."""
    covered = []
    for axis, side in enumerate(images.shape[-2:]):
        size = min(round(side * percent / 100), side)
        first = (draws[:, axis, None] * (side - size + 1)).floor()
        places = torch.arange(side, device=images.device)
        covered.append((places >= first) & (places < first + size))
    inside = covered[0][:, None, :, None] & covered[1][:, None, None, :]
    return images.masked_fill(inside, 0.5)


def add_noise(images: Tensor, deviation: float, draws: Tensor) -> Tensor:
    """Gaussian noise of that standard deviation, in units of the full range."""
    return images + deviation * normal(draws).view_as(images)


def blur(images: Tensor, percent: float, draws: Tensor) -> Tensor:
    """Gaussian blur of that standard deviation; the image's border is repeated outwards."""
    channels = images.shape[1]
    for axis, side in ((2, images.shape[2]), (3, images.shape[3])):
        sigma = side * percent / 100
        reach = max(math.ceil(3 * sigma), 1)
        places = torch.arange(-reach, reach + 1, device=images.device, dtype=images.dtype)
        weights = torch.exp(-0.5 * (places / sigma).square())
        shape = [1, 1, 1, 1]
        shape[axis] = -1
        kernel = (weights / weights.sum()).view(shape).expand(channels, -1, -1, -1)
        pad = (reach, reach, 0, 0) if axis == 3 else (0, 0, reach, reach)
        images = F.conv2d(F.pad(images, pad, mode="replicate"), kernel, groups=channels)
    return images


CORRUPTIONS: dict[str, Corruption] = {
    c.name: c
    for c in (
        Corruption("rotation", "degrees", (0, 10, 20, 30, 45, 60, 90), 1, rotate),
        Corruption("translation", "% of the side", (0, 5, 10, 15, 20, 30), 1, translate),
        Corruption("occlusion", "% of the side covered", (0, 10, 20, 30, 40, 50, 60), 2, occlude),
        Corruption("noise", "standard deviation, pixels in [0, 1]", (0, 0.05, 0.1, 0.2, 0.3, 0.5), 0, add_noise),
        Corruption("blur", "standard deviation, % of the side", (0, 2, 4, 6, 8, 10), 1, blur),
    )
}
"""The corruptions by name."""


def corrupt(name: str, images: Tensor, severity: float, indices: Tensor | None = None, seed: int = 0) -> Tensor:
    """Images under one of `CORRUPTIONS`.

    Args:
        name: "rotation", "translation", "occlusion", "noise" or "blur".
        images: in [0, 1].
        severity: in the unit of the corruption; 0 leaves the images unchanged.
        indices: places of the images in their split; 0, 1, ... when None.
        seed: of the random choices.

    Shapes: images (batch, channels, height, width), indices int64 (batch,) -> like images.
    """
    if name not in CORRUPTIONS:
        raise unknown("corruption", name, CORRUPTIONS)
    if not bool(((images >= 0) & (images <= 1)).all()):
        raise UsageError("images has values outside [0, 1] or not a number; give pixels before normalisation.")
    return CORRUPTIONS[name](images, severity, torch.arange(len(images)) if indices is None else indices, seed)
