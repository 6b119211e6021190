"""Sequences of joints with a class each, of any lengths; served a batch at a time, padded with zeros."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mereo.data.batch import Batch
from mereo.data.images import BatchOptions
from mereo.data.tensor_set import TensorSet
from mereo.errors import UsageError, check_count


class Sequences(TensorSet):
    """Sequences of frames, stored one after the other without padding.

    A longer sequence than `length` gives as many of its frames, evenly spaced: frame floor(t L / length).

    Args:
        frames: of all sequences, (frames, coordinates).
        counts: frames of each sequence.
        labels: class numbers; None for sequences to predict.
        class_names: by class number.
        length: frames of a sequence in a batch.

    Shapes: frames float32 (all frames, coordinates), counts and labels int64 (n,).
    """

    serves = "sequences"
    of_samples, of_all = ("starts", "counts", "labels"), ("frames",)

    def __init__(
        self, frames: Tensor, counts: Tensor, labels: Tensor | None, class_names: tuple[str, ...], length: int,
        starts: Tensor | None = None,
    ) -> None:  # fmt: skip
        check_count(1, length=length)
        if frames.dim() != 2 or frames.dtype != torch.float32:
            raise UsageError(f"frames are {frames.dtype} of {tuple(frames.shape)}; they must be float32 (n, values).")
        if len(counts) and int(counts.min()) < 1:
            raise UsageError(f"sequence {int(counts.argmin())} has {int(counts.min())} frames; it needs at least 1.")
        self.frames, self.counts, self.labels, self.class_names, self.length = (
            frames, counts, labels, class_names, length,
        )  # fmt: skip
        self.starts = counts.cumsum(0) - counts if starts is None else starts

    @classmethod
    def joined(
        cls, each: Sequence[Tensor], labels: Sequence[int] | None, class_names: tuple[str, ...], length: int
    ) -> "Sequences":
        """Sequences (frames, coordinates) with their classes."""
        counts = torch.tensor([len(frames) for frames in each], dtype=torch.int64)
        given = None if labels is None else torch.tensor(labels, dtype=torch.int64)
        return cls(torch.cat(list(each)), counts, given, class_names, length)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(1, frames, coordinates): what a sequence takes in a batch."""
        return 1, self.length, self.frames.shape[1]

    @property
    def strata(self) -> Tensor:
        return super().strata if self.labels is None else self.labels.cpu()

    def relabelled(self, places: Tensor, class_names: tuple[str, ...]) -> "Sequences":
        """The same sequences with `places[label]` as their classes."""
        labels = None if self.labels is None else places.to(self.labels.device)[self.labels]
        return Sequences(self.frames, self.counts, labels, class_names, self.length, self.starts)

    def make_batch(self, indices: Tensor, options: BatchOptions) -> Batch:
        """The sequences at `indices`, changed by the augmentation; there is nothing to crop."""
        augmentation, share = options.augmentation, options.share
        drawn = []
        if augmentation is not None:
            shape = (len(indices), self.length, self.frames.shape[1])
            drawn = [each[share] for each in augmentation.draw(*shape, options.generator)]
        chosen = indices[share].to(self.frames.device)
        counts, steps = self.counts[chosen].unsqueeze(1), torch.arange(self.length, device=self.frames.device)
        lengths = counts.clamp(max=self.length)
        valid = steps < lengths
        places = torch.where(counts > self.length, steps * counts // self.length, steps).minimum(counts - 1)
        sequences = self.frames[self.starts[chosen].unsqueeze(1) + places] * valid.unsqueeze(-1)
        labels: Any = None if self.labels is None else self.labels[chosen]
        batch = Batch(sequences=sequences, lengths=lengths.squeeze(1), labels=labels)
        batch = batch.to(options.device or self.frames.device)
        return batch if augmentation is None else augmentation.apply_batch(batch, drawn)
