"""Motions: geometric changes of an image together with its masks, boxes and targets.

Boxes are corners in pixels, where pixel i covers [i, i + 1]. A moved box is the smallest upright box around the
moved corners, clipped to the image; an empty box is dropped.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mereo.data.batch import Batch
from mereo.data.geometric import take_window, transform

IGNORED = -1
"""In masks, the class of a pixel outside the image; in box labels, no box."""
_EMPTY = 1e-3
"""Smallest side of a box in pixels; below it there is only rounding error."""


def clip_boxes(boxes: Tensor, labels: Tensor | None, size: tuple[int, int]) -> tuple[Tensor, Tensor | None]:
    """Boxes clipped to an image of (height, width); empty ones become 0, their labels -1.

    Shapes: boxes float32 (n, most, 4), labels int64 (n, most).
    """
    height, width = size
    limits = torch.tensor([width, height, width, height], dtype=boxes.dtype, device=boxes.device)
    boxes = boxes.clamp(min=0).minimum(limits)
    kept = ((boxes[..., 2:] - boxes[..., :2]) > _EMPTY).all(dim=-1)
    if labels is not None:
        kept &= labels != IGNORED
        labels = labels.masked_fill(~kept, IGNORED)
    return boxes.masked_fill(~kept.unsqueeze(-1), 0), labels


class Motion(ABC):
    """A move of every image of a batch."""

    @abstractmethod
    def images(self, images: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, c, new h, new w)."""

    @abstractmethod
    def masks(self, masks: Tensor) -> Tensor:
        """int64 (n, h, w) -> (n, new h, new w); -1 outside the image."""

    @abstractmethod
    def boxes(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """(n, most, 4) on images of (height, width), before any clipping."""

    def batch(self, batch: Batch) -> Batch:
        """A batch whose images, targets, masks and boxes are moved."""
        size = batch.images.shape[-2], batch.images.shape[-1]
        images = self.images(batch.images)
        batch = batch._replace(images=images)
        if batch.targets is not None:
            batch = batch._replace(targets=torch.stack([self.images(part) for part in batch.targets.unbind(1)], dim=1))
        if batch.masks is not None:
            batch = batch._replace(masks=self.masks(batch.masks))
        if batch.boxes is not None:
            moved = self.boxes(batch.boxes, size)
            boxes, labels = clip_boxes(moved, batch.box_labels, (images.shape[-2], images.shape[-1]))
            batch = batch._replace(boxes=boxes, box_labels=labels)
        return batch


@dataclass(frozen=True)
class Window(Motion):
    """A window of `size` whose top left pixel is at `corners`, int64 (n, 2) of (top, left), any sign."""

    corners: Tensor
    size: tuple[int, int]

    def images(self, images: Tensor) -> Tensor:
        return take_window(images, self.corners, self.size)

    def masks(self, masks: Tensor) -> Tensor:
        return take_window(masks.unsqueeze(1), self.corners, self.size, fill=IGNORED).squeeze(1)

    def boxes(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        return boxes - self.corners.to(boxes.device).flip(1).repeat(1, 2).unsqueeze(1)


@dataclass(frozen=True)
class Mirror(Motion):
    """A horizontal flip where `flipped`, bool (n,)."""

    flipped: Tensor

    def images(self, images: Tensor) -> Tensor:
        return torch.where(self.flipped.view(-1, 1, 1, 1), images.flip(-1), images)

    def masks(self, masks: Tensor) -> Tensor:
        return torch.where(self.flipped.view(-1, 1, 1), masks.flip(-1), masks)

    def boxes(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        left, top, right, bottom = boxes.unbind(-1)
        mirrored = torch.stack([size[1] - right, top, size[1] - left, bottom], dim=-1)
        return torch.where(self.flipped.view(-1, 1, 1), mirrored, boxes)


@dataclass(frozen=True)
class Affine(Motion):
    """out(p) = image(M p + o), as `transform` does it.

    Shapes: matrices (n, 2, 2) of (x, y), offsets (n, 2) or None.
    """

    matrices: Tensor
    offsets: Tensor | None = None
    outside: Literal["zeros", "border"] = "zeros"

    def images(self, images: Tensor) -> Tensor:
        return transform(images, self.matrices, self.offsets, outside=self.outside)

    def masks(self, masks: Tensor) -> Tensor:
        # One more, so that the zeros from outside become -1. Whole numbers are exact in float32 up to 2**24.
        shifted = (masks + 1).unsqueeze(1).float()
        moved = transform(shifted, self.matrices, self.offsets, nearest=True, outside=self.outside)
        return moved.squeeze(1).long() - 1

    def boxes(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        centre = torch.tensor([size[1] / 2, size[0] / 2], dtype=boxes.dtype, device=boxes.device)
        points = boxes[..., [0, 1, 2, 1, 0, 3, 2, 3]].unflatten(-1, (4, 2)) - centre
        if self.offsets is not None:
            points = points - self.offsets[:, None, None]
        (a, b), (c, d) = (row.unbind(1) for row in self.matrices.unbind(1))
        inverse = torch.stack([d, -b, -c, a], dim=1).view(-1, 2, 2) / (a * d - b * c).view(-1, 1, 1)
        moved = (inverse[:, None, None] @ points.unsqueeze(-1)).squeeze(-1) + centre
        return torch.cat([moved.amin(dim=2), moved.amax(dim=2)], dim=-1)
