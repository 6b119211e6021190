"""The augmentation with which Efficient-CapsNet (arXiv 2101.12491) is trained on MNIST, over whole batches."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mereo.data.batch import Batch
from mereo.data.geometric import rotation
from mereo.data.motion import Affine, Window
from mereo.data.operation import Operation

MAX_DEGREES, DEVIATION, LARGEST = 30.0, 0.33, 0.9999
SQUISHED = 0.25
ERASED, BORDER, LEFT_OUT = 4, 4, 1
DARK = 0.5 / 255  # values below are stored as black; interpolation leaves such traces


def content_margins(images: Tensor) -> Tensor:
    """Empty rows and columns around the pixels that are not black: (top, bottom, left, right). Black images count as
    full.

    Shapes: (n, c, h, w) -> int64 (n, 4).
    """
    lit = (images > DARK).any(dim=1)
    margins = []
    for line in (lit.any(dim=2), lit.any(dim=1)):
        # argmax of a bool line is the first lit place, and 0 where nothing is lit.
        margins += [line.int().argmax(dim=1), line.flip(1).int().argmax(dim=1)]
    return torch.stack(margins, dim=1)


@dataclass(frozen=True)
class EfficientMnist(Operation):
    """Rotation, horizontal squish, shift inside the margins of the digit, and a small square erased.

    With n drawn anew each time from a normal distribution of deviation 0.33, clipped to +-0.9999: half of the images
    are rotated by 30 n degrees, whole degrees; the width is squished by floor(|n| width / 4 + 1) pixels about the
    centre; on each axis the digit is shifted by |n| times the margin on the one or the other side. A square of 4 x 4
    pixels is erased in every image, its first row and column uniform from 4 to 22 of 28.

    Deviates: rotation and squish share one interpolation and come before the shift, so that an image is resampled
    once; the shift, an exact gather, therefore always keeps the digit inside. The authors also shift half of the
    images of large |n| by one pixel to the right while they squish.

    Reference: arXiv:2101.12491, the authors' code.
    """

    name: ClassVar[str] = "efficient_mnist"
    usage: ClassVar[str] = "efficient_mnist"

    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None) -> Tensor:
        """-> float32 (count, 6): radians, width factor, two shifts in (-1, 1), place of the square in [0, 1)."""
        normal = torch.randn(count, 4, generator=generator).mul(DEVIATION).clamp(-LARGEST, LARGEST)
        places = torch.rand(count, 3, generator=generator)
        turned = (normal[:, 0] * MAX_DEGREES).trunc() * (math.pi / 180) * (places[:, 0] < 0.5)
        # At least a pixel of the width is left.
        narrower = ((normal[:, 1].abs() * SQUISHED * width).floor() + 1).clamp(max=width - 1)
        factor = 1 - narrower / width
        return torch.cat([turned[:, None], factor[:, None], normal[:, 2:], places[:, 1:]], dim=1)

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        return self.apply_batch(Batch(images), parameters).images

    def apply_batch(self, batch: Batch, parameters: Tensor) -> Batch:
        parameters = parameters.to(batch.images.device)
        height, width = batch.images.shape[-2:]
        matrices = rotation(parameters[:, 0])
        # The first row finds x of the source: dividing it by the factor makes the picture narrower.
        narrower = torch.stack([1 / parameters[:, 1], torch.ones_like(parameters[:, 1])], dim=1)
        batch = Affine(matrices @ torch.diag_embed(narrower)).batch(batch)
        margins = content_margins(batch.images)
        before, after = margins[:, [0, 2]], margins[:, [1, 3]]
        amount = parameters[:, 2:4]
        shift = (amount * torch.where(amount < 0, before, after + 1)).floor().long()
        batch = Window(-shift, (height, width)).batch(batch)
        return batch._replace(images=self._erase(batch.images, parameters[:, 4:6]))

    @staticmethod
    def _erase(images: Tensor, places: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        inside = []
        for side, place in ((height, places[:, :1]), (width, places[:, 1:])):
            start = min(BORDER, max(side - ERASED, 0) // 2)
            room = max(side - ERASED - start - 1 - LEFT_OUT, 0)
            first = start + (place * (room + 1)).long().clamp(max=room)
            line = torch.arange(side, device=images.device)
            inside.append((line >= first) & (line < first + ERASED))
        return images.masked_fill(inside[0][:, None, :, None] & inside[1][:, None, None, :], 0)
