"""The data of one step: images, labels and other fields that a task needs, all batched along the first axis."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mereo.errors import UsageError
from mereo.runtime.device import copied_to

_ABSENT: Any = None
"""Typed as if present: nearly every task has images and labels and need not check. Sequences have no `images`."""


class Batch(NamedTuple):
    """One process's part of a step. Every field may be None, but not all of them.

    Shapes:
        images: float32 (batch, channels, height, width) in [0, 1], augmented and not normalised.
        labels: int64 (batch,), or (batch, objects) for images of several objects; concepts of a sentence about regions.
        targets: float32 (batch, objects, channels, height, width) in [0, 1], what a decoder reconstructs per label.
        masks: int64 (batch, height, width), the class of each pixel; -1 is ignored.
        boxes: float32 (batch, most, 4), corners x0, y0, x1, y1 in pixels; rows without a box are 0.
        box_labels: int64 (batch, most); -1 where there is no box.
        tokens: int64 (batch, length).
        lengths: int64 (batch,), the number of tokens, points or frames that are not padding.
        pairs: int64 (batch,), a group number; samples with the same number belong together.
        points: float32 (batch, most, coordinates).
        multi_hot: int64 (batch, classes), 1 for each label that an image has, else 0.
        values: float32 (batch, columns), the numbers that are predicted.
        regions: float32 (batch, regions, features), of the attended regions of a scene: subject, object, maybe both; or
            of its objects and, last, a target that is looked for.
        pointers: int64 (batch, steps), 1 for the first point or object, 0 for the end of a sequence and -1 for padding.
        attributes: int64 (batch, attributes), a number for the value of each attribute; -1 where it is not known.
        rows: float32 (batch, rows, columns), a table of numbers for each sample.
        prompts: int64 (batch, words), what is to be drawn.
        sequences: float32 (batch, frames, coordinates), joints over time, ordered by body, joint and x, y, z.
    """

    images: Tensor = _ABSENT
    labels: Tensor = _ABSENT
    targets: Tensor | None = None
    masks: Tensor | None = None
    boxes: Tensor | None = None
    box_labels: Tensor | None = None
    tokens: Tensor | None = None
    lengths: Tensor | None = None
    pairs: Tensor | None = None
    points: Tensor | None = None
    pointers: Tensor | None = None
    multi_hot: Tensor | None = None
    values: Tensor | None = None
    rows: Tensor | None = None
    regions: Tensor | None = None
    prompts: Tensor = _ABSENT
    sequences: Tensor = _ABSENT
    attributes: Tensor | None = None

    @property
    def length(self) -> int:
        """Number of samples; `len(batch)` is the number of fields, as of any tuple."""
        for field in self:
            if field is not None:
                return len(field)
        raise UsageError("the batch is empty: every field is None; give at least one.")

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on `device`."""
        return self._map(lambda field: copied_to(field, device))

    def pick(self, share: slice | Tensor) -> "Batch":
        """The samples of a slice, or at the indices int64 (n,)."""
        return self._map(lambda field: field[share])

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        fields: list[Any] = [None if field is None else change(field) for field in self]
        return Batch(*fields)
