"""Image statistics (size, colourfulness, brightness) for detecting images unlike the training data.

A network that was trained on grey drawings of 28 pixels predicts some class for a photograph too. Comparing these
statistics with their ranges over the training images detects such inputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

SAMPLED = 64
"""Number of training images that the ranges are computed from, evenly spaced."""
TIMES = 4
"""How many times the shorter side may lie outside the range."""
_GREY, _COLOUR, _BRIGHTNESS = 0.02, 0.1, 0.3
_THUMBNAIL = 32


class ImageStatistics(NamedTuple):
    """Statistics of one image: height and width of its file, colour (mean over pixels of the largest minus the smallest
    channel) and brightness (mean), both in [0, 1]."""

    height: int
    width: int
    colour: float
    brightness: float


@dataclass(frozen=True)
class StatisticsRanges:
    """Ranges (minimum, maximum) of the statistics over training images; None if unknown."""

    sides: tuple[float, float] | None = None
    colour: tuple[float, float] | None = None
    brightness: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {name: list(value) for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, values: object) -> "StatisticsRanges":
        """The ranges in the metadata of a weight file; invalid values count as unknown."""
        ranges = {}
        for name in cls.__dataclass_fields__ if isinstance(values, Mapping) else ():
            value = values.get(name) if isinstance(values, Mapping) else None
            if isinstance(value, list) and len(value) == 2 and all(type(v) in (int, float) for v in value):
                ranges[name] = (float(value[0]), float(value[1]))
        return cls(**ranges)

    def differences(self, statistics: ImageStatistics) -> list[str]:
        """How an image differs from the training images; empty if it does not."""
        reasons = []
        side = min(statistics.height, statistics.width)
        if self.sides is not None and not self.sides[0] / TIMES <= side <= self.sides[1] * TIMES:
            low, high = self.sides
            known = f"{low:g}" if low == high else f"{low:g} to {high:g}"
            reasons.append(f"{statistics.height} x {statistics.width} pixels, not {known}")
        if self.colour is not None:
            if self.colour[1] < _GREY and statistics.colour > _COLOUR:
                reasons.append("in colour, not grey")
            elif self.colour[0] > 2 * _GREY and statistics.colour < _GREY / 4:
                reasons.append("grey, not in colour")
        if self.brightness is not None:
            if statistics.brightness > self.brightness[1] + _BRIGHTNESS:
                reasons.append("much brighter")
            elif statistics.brightness < self.brightness[0] - _BRIGHTNESS:
                reasons.append("much darker")
        return reasons


def colour_and_brightness(images: Tensor) -> tuple[Tensor, Tensor]:
    """Colour and brightness. Shapes: images (n, channels, height, width) in [0, 1] -> (n,), (n,)."""
    spread = (images.amax(1) - images.amin(1)).flatten(1).mean(1)
    colour = spread if images.shape[1] == 3 else torch.zeros_like(spread)
    return colour, images.flatten(1).mean(1)


def _range(values: Tensor) -> tuple[float, float]:
    return round(values.min().item(), 4), round(values.max().item(), 4)


def ranges_of(images: Tensor, sides: Sequence[tuple[int, int]] = (), *, colour: bool = True) -> StatisticsRanges:
    """The ranges of the statistics over images.

    Args:
        images: inputs of the network before normalisation.
        sides: heights and widths of the files, where known.
        colour: False if colour files were converted to grey, so that the colour of the files is unknown.

    Shapes: images (n, channels, height, width) in [0, 1].
    """
    of_colour, brightness = colour_and_brightness(images)
    shorter = [min(size) for size in sides]
    return StatisticsRanges(
        sides=(min(shorter), max(shorter)) if shorter else None,
        colour=_range(of_colour) if colour and len(images) else None,
        brightness=_range(brightness) if len(images) else None,
    )


def file_statistics(stream: BinaryIO) -> ImageStatistics:
    """The statistics of an image file, computed on a thumbnail."""
    import numpy as np
    from PIL import Image

    from mereo.data.decode import FORMATS, to_mode

    with Image.open(stream, formats=FORMATS) as image:
        height, width = image.height, image.width
        image.draft(None, (_THUMBNAIL, _THUMBNAIL))
        small = to_mode(image, "RGB").resize((_THUMBNAIL, _THUMBNAIL), Image.Resampling.BOX)
    pixels = torch.from_numpy(np.asarray(small).copy()).permute(2, 0, 1).unsqueeze(0) / 255
    colour, brightness = colour_and_brightness(pixels)
    return ImageStatistics(height, width, colour.item(), brightness.item())
