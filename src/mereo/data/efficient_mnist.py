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

MAX_DEGREES, DEVIATION = 30.0, 0.33
NARROWEST = 0.75
ERASED, BORDER = 4, 4
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

    The rotation is 30 degrees times a normal number of deviation 0.33, clipped to +-1, for half of the images. Where
    the published account gives no range, these are used: the digit is squished to a width factor uniform in
    [0.75, 1], about the centre; the shift is uniform over all whole-pixel shifts that keep the digit inside the
    image; the erased square of 4 x 4 pixels lies anywhere at least 4 pixels from the border, in every image.

    Deviates: rotation and squish share one interpolation and come before the shift, so that an image is resampled
    once; the shift, an exact gather, therefore always keeps the digit inside.
    """

    name: ClassVar[str] = "efficient_mnist"
    usage: ClassVar[str] = "efficient_mnist"

    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None) -> Tensor:
        """-> float32 (count, 6): radians, width factor, and four numbers in [0, 1) for the shift and the square."""
        normal = torch.randn(count, generator=generator).mul(DEVIATION).clamp(-1, 1)
        places = torch.rand(count, 6, generator=generator)
        turned = normal * (MAX_DEGREES * math.pi / 180) * (places[:, 0] < 0.5)
        factor = 1 - (1 - NARROWEST) * places[:, 1]
        return torch.cat([turned[:, None], factor[:, None], places[:, 2:]], dim=1)

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
        room = margins.view(-1, 2, 2).sum(dim=2)
        corners = margins[:, [0, 2]] - (parameters[:, 2:4] * (room + 1)).long().minimum(room)
        batch = Window(corners, (height, width)).batch(batch)
        return batch._replace(images=self._erase(batch.images, parameters[:, 4:6]))

    @staticmethod
    def _erase(images: Tensor, places: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        inside = []
        for side, place in ((height, places[:, :1]), (width, places[:, 1:])):
            start = min(BORDER, max(side - ERASED, 0) // 2)
            room = max(side - ERASED - 2 * start, 0)
            first = start + (place * (room + 1)).long().clamp(max=room)
            line = torch.arange(side, device=images.device)
            inside.append((line >= first) & (line < first + ERASED))
        return images.masked_fill(inside[0][:, None, :, None] & inside[1][:, None, None, :], 0)
