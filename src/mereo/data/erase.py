"""Random erasing (arXiv 1708.04896)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mereo.data.operation import Operation
from mereo.errors import UsageError

NARROWEST = 0.3


@dataclass(frozen=True)
class Erase(Operation):
    """A rectangle made black, with a probability; its share of the area uniform in [low, high), its sides' ratio
    log-uniform in [0.3, 1 / 0.3]. Masks and boxes keep what it hides.

    Deviates: a rectangle that does not fit is shortened to the side of the image, where the paper draws again.
    """

    probability: float
    low: float
    high: float
    name: ClassVar[str] = "erase"
    usage: ClassVar[str] = "erase=0.5:0.02:0.33"

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise UsageError(f"erase has the probability {self.probability:g}; it must be between 0 and 1.")
        if not 0 <= self.low <= self.high <= 1:
            raise UsageError(
                f"erase is {self.low:g}:{self.high:g}; it must be two shares of the area, 0 <= low <= high <= 1."
            )

    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None) -> Tensor:
        """-> int64 (count, 4): top, left, height and width of the rectangle; of height 0 if nothing is erased."""
        drawn = torch.rand(count, 5, generator=generator)
        area = (self.low + (self.high - self.low) * drawn[:, 1]) * (height * width)
        ratio = (math.log(NARROWEST) * (2 * drawn[:, 2] - 1)).exp()
        high = (area * ratio).sqrt().round().clamp(max=height) * (drawn[:, 0] < self.probability)
        wide = (area / ratio).sqrt().round().clamp(max=width)
        top, left = (drawn[:, 3] * (height - high + 1)).floor(), (drawn[:, 4] * (width - wide + 1)).floor()
        return torch.stack([top, left, high, wide], dim=1).long()

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        parameters = parameters.to(images.device)
        inside = []
        for axis, side in enumerate(images.shape[-2:]):
            line, first = torch.arange(side, device=images.device), parameters[:, axis, None]
            inside.append((line >= first) & (line < first + parameters[:, 2 + axis, None]))
        return images.masked_fill((inside[0][:, :, None] & inside[1][:, None, :]).unsqueeze(1), 0)
