"""What images look like, in three numbers: their shorter side, how colourful and how bright they are.

A network that was trained on grey drawings of 28 pixels gives some class to a photograph too. Comparing these numbers
with those of the training images shows when a network is used on other data than it knows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

SAMPLED = 64
"""Training images that are looked at, evenly spread."""
TIMES = 4
"""How many times as large, or as small, an image has to be to look unlike others."""
_GREY, _COLOUR, _BRIGHTNESS = 0.02, 0.1, 0.3
_THUMBNAIL = 32


class Look(NamedTuple):
    """One image: height and width of its file, colour (mean of the largest less the smallest channel) and mean, both in
    [0, 1]."""

    height: int
    width: int
    colour: float
    brightness: float


@dataclass(frozen=True)
class Looks:
    """Ranges (lowest, highest) over training images; None where they are not known."""

    sides: tuple[float, float] | None = None
    colour: tuple[float, float] | None = None
    brightness: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {name: list(value) for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, values: object) -> "Looks":
        """The ranges that a file of weights states; unknown ones for values of a wrong form."""
        ranges = {}
        for name in cls.__dataclass_fields__ if isinstance(values, Mapping) else ():
            value = values.get(name) if isinstance(values, Mapping) else None
            if isinstance(value, list) and len(value) == 2 and all(type(v) in (int, float) for v in value):
                ranges[name] = (float(value[0]), float(value[1]))
        return cls(**ranges)

    def unlike(self, look: Look) -> list[str]:
        """Why an image does not look like the training images; empty for one that does."""
        reasons = []
        side = min(look.height, look.width)
        if self.sides is not None and not self.sides[0] / TIMES <= side <= self.sides[1] * TIMES:
            low, high = self.sides
            known = f"{low:g}" if low == high else f"{low:g} to {high:g}"
            reasons.append(f"{look.height} x {look.width} pixels, not {known}")
        if self.colour is not None:
            if self.colour[1] < _GREY and look.colour > _COLOUR:
                reasons.append("in colour, not grey")
            elif self.colour[0] > 2 * _GREY and look.colour < _GREY / 4:
                reasons.append("grey, not in colour")
        if self.brightness is not None:
            if look.brightness > self.brightness[1] + _BRIGHTNESS:
                reasons.append("much brighter")
            elif look.brightness < self.brightness[0] - _BRIGHTNESS:
                reasons.append("much darker")
        return reasons


def pixel_looks(images: Tensor) -> tuple[Tensor, Tensor]:
    """Colour and brightness. Shapes: images (n, channels, height, width) in [0, 1] -> (n,), (n,)."""
    spread = (images.amax(1) - images.amin(1)).flatten(1).mean(1)
    colour = spread if images.shape[1] == 3 else torch.zeros_like(spread)
    return colour, images.flatten(1).mean(1)


def _range(values: Tensor) -> tuple[float, float]:
    return round(values.min().item(), 4), round(values.max().item(), 4)


def looks_of(images: Tensor, sides: Sequence[tuple[int, int]] = (), *, colour: bool = True) -> Looks:
    """The ranges of some training images.

    Args:
        images: as the network gets them, before normalisation.
        sides: heights and widths of their files, where known.
        colour: whether the colour is that of the files, which it is not where they were made grey.

    Shapes: images (n, channels, height, width) in [0, 1].
    """
    of_colour, brightness = pixel_looks(images)
    shorter = [min(size) for size in sides]
    return Looks(
        sides=(min(shorter), max(shorter)) if shorter else None,
        colour=_range(of_colour) if colour and len(images) else None,
        brightness=_range(brightness) if len(images) else None,
    )


def look_at(stream: BinaryIO) -> Look:
    """The look of an image file, from a thumbnail of it."""
    import numpy as np
    from PIL import Image

    from mereo.data.decode import FORMATS, to_mode

    with Image.open(stream, formats=FORMATS) as image:
        height, width = image.height, image.width
        image.draft(None, (_THUMBNAIL, _THUMBNAIL))
        small = to_mode(image, "RGB").resize((_THUMBNAIL, _THUMBNAIL), Image.Resampling.BOX)
    pixels = torch.from_numpy(np.asarray(small).copy()).permute(2, 0, 1).unsqueeze(0) / 255
    colour, brightness = pixel_looks(pixels)
    return Look(height, width, colour.item(), brightness.item())
