"""Sets of images that serve batches."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from mereo.data.augmentation import Augmentation
from mereo.data.batch import Batch
from mereo.data.fields import as_served, check_fields
from mereo.data.motion import Window
from mereo.data.storage import Storage
from mereo.errors import UsageError
from mereo.runtime.device import copied_to

_CHUNK = 4096


class BatchOptions(NamedTuple):
    """How `Images.batch` serves its images: its arguments, with a slice for all of the batch if `share` is None."""

    augmentation: Augmentation | None
    crop: tuple[int, int] | None
    generator: torch.Generator | None
    share: slice
    device: torch.device | str | None


class Images(ABC):
    """A set of images that serves batches by index, stored or generated on the fly.

    Attributes:
        serves: what a network reads of its batches: "images", or "tokens", "points", "rows", "regions",
            "prompts" or "sequences".
    """

    class_names: tuple[str, ...]
    labels_per_image: int = 1
    serves: ClassVar[str] = "images"

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) before any crop."""

    @property
    @abstractmethod
    def strata(self) -> Tensor:
        """int64 (n,), the class of each sample for stratified choices."""

    @abstractmethod
    def to(self, device: torch.device | str) -> Self:
        """The same set with its pixels on `device`."""

    @abstractmethod
    def subset(self, indices: Tensor) -> Self:
        """The images at `indices`, in that order."""

    def batch(
        self,
        indices: Tensor,
        *,
        augmentation: Augmentation | None = None,
        crop: tuple[int, int] | None = None,
        generator: torch.Generator | None = None,
        share: slice | None = None,
        device: torch.device | str | None = None,
    ) -> Batch:
        """The images at `indices`, ready for a model.

        Random parameters are drawn for all of `indices`, the global batch of the step, and only then does `share`
        select: two processes with half of the batch each see exactly what one process with all of it sees.

        Args:
            indices: int64 (n,), of the global batch.
            augmentation: changes the images at random; it needs a generator.
            crop: height and width to cut out, when less than the stored ones: at random with a generator (training),
                in the centre without (evaluation).
            generator: on the CPU; one generator with the same seed in every process.
            share: this process's part of the batch; all of it when None.
            device: where to compute; the device of the images when None.
        """
        check_draws(generator, augmentation)
        for operation in () if augmentation is None else augmentation.operations:
            if operation.changes != self.serves:
                raise UsageError(f"augment has {operation}, for {operation.changes}; leave it out for {self.serves}.")
        return self.make_batch(indices, BatchOptions(augmentation, crop, generator, share or slice(None), device))

    def make_batch(self, indices: Tensor, options: BatchOptions) -> Batch:
        """What `batch` gives, for checked arguments."""
        raise NotImplementedError(f"{type(self).__name__} must define make_batch")

    def describe(self) -> dict[str, Any] | None:
        """The identity of the data as plain values, which change if any sample changes; None for images, whose
        pixels and labels are compared."""
        return None

    def order(self, generator: torch.Generator) -> Tensor:
        """The order in which one epoch visits the images: a permutation of 0 .. n - 1, int64 (n,).

        Args:
            generator: on the CPU, seeded for this epoch.
        """
        return torch.randperm(len(self), generator=generator)

    def prefetch(self, indices: Tensor) -> None:
        """Announce which images this process will request next, in order, so that a set can decode them ahead.

        Args:
            indices: int64 (n,), of this process's shares of the next batches, concatenated.
        """
        return


def identity(count: int, size: Sequence[int], *fields: Tensor | None) -> dict[str, Any]:
    """What `Images.describe` gives for a set without images: it changes if any value of a field changes."""
    digest = hashlib.sha256()
    for values in fields:
        digest.update(b"" if values is None else values.cpu().numpy().tobytes())
    return {"count": count, "size": [*size], "classes": [], "labels": digest.hexdigest(), "sums": [[0]]}


def check_draws(generator: torch.Generator | None, augmentation: Augmentation | None) -> None:
    """Raise `UsageError` unless random parameters can be drawn reproducibly."""
    if generator is None and augmentation is not None and augmentation.operations:
        raise UsageError("generator is None; augmentation draws at random, so it needs a torch.Generator with a seed.")
    if generator is not None and generator.device.type != "cpu":
        raise UsageError(f"generator is on {generator.device}; it must be on the CPU, so that processes agree.")


def crop_corners(
    count: int, shape: tuple[int, int, int], crop: tuple[int, int] | None, generator: torch.Generator | None
) -> Tensor | None:
    """Top and left of a crop for each image: random with a generator, else the centre. -> int64 (count, 2) or None."""
    _, height, width = shape
    if crop is None or tuple(crop) == (height, width):
        return None
    spare = height - crop[0], width - crop[1]
    if min(spare) < 0 or min(crop) < 1:
        raise UsageError(f"crop is {tuple(crop)}; it must lie inside the stored images of {height} x {width}.")
    if generator is None:
        return torch.tensor([spare[0] // 2, spare[1] // 2]).expand(count, 2)
    return torch.stack([torch.randint(0, room + 1, (count,), generator=generator) for room in spare], dim=1)


@dataclass(frozen=True, eq=False)
class ImageSet(Images):
    """A split that is stored completely, in memory or in a memory-mapped file.

    Args:
        images: pixels.
        labels: class numbers.
        class_names: by class number.
        fields: further fields of its batches by name, of `mereo.data.Batch`: masks, boxes with box_labels, tokens with
            lengths, pairs. Boxes are in pixels of the stored images, padded with rows of 0 and the label -1.

    Shapes: images uint8 (n, channels, height, width), labels int64 (n,), on one device; fields as in `Batch`.
    """

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    fields: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.dim() != 4:
            given = f"{self.images.dtype} of shape {tuple(self.images.shape)}"
            raise UsageError(f"images is {given}; it must be torch.uint8 of shape (n, channels, height, width).")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            given = f"{self.labels.dtype} of shape {tuple(self.labels.shape)}"
            raise UsageError(f"labels is {given}; it must be torch.int64 of shape ({len(self.images)},).")
        on_cpu = self.labels.device.type == "cpu"  # reading values would wait for the device
        if (
            on_cpu
            and len(self.labels)
            and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.class_names)
        ):
            raise UsageError(f"labels has values outside 0 .. {len(self.class_names) - 1}, the range of class_names.")
        check_fields(self.fields, len(self.images), (self.images.shape[2], self.images.shape[3]))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    @property
    def strata(self) -> Tensor:
        return self.labels.cpu()

    def to(self, device: torch.device | str) -> "ImageSet":
        fields = {name: values.to(device) for name, values in self.fields.items()}
        return ImageSet(self.images.to(device), self.labels.to(device), self.class_names, fields)

    def subset(self, indices: Tensor) -> "ImageSet":
        indices = indices.to(self.images.device)
        fields = {name: values[indices] for name, values in self.fields.items()}
        if self.images.device.type != "cpu":
            return ImageSet(self.images[indices], self.labels[indices], self.class_names, fields)
        # The set may be a mapped file larger than the memory, and so may its subset.
        part = Storage().allocate(len(indices), *self.image_shape)
        for start in range(0, len(indices), _CHUNK):
            part[start : start + _CHUNK] = self.images[indices[start : start + _CHUNK]]
        return ImageSet(part, self.labels[indices], self.class_names, fields)

    def make_batch(self, indices: Tensor, options: BatchOptions) -> Batch:
        augmentation, crop, generator, share, device = options
        count, (_, height, width) = len(indices), self.image_shape
        drawn = [] if augmentation is None else augmentation.draw(count, height, width, generator)
        corners = crop_corners(count, self.image_shape, crop, generator)

        chosen = indices[share].to(self.images.device)
        images = copied_to(self.images[chosen], device) / 255  # to float32 in the same pass
        others = {"labels": self.labels, **self.fields}
        parts = {name: copied_to(values[chosen], images.device) for name, values in others.items()}
        batch = Batch(images, parts.pop("labels"), **{name: as_served(name, part) for name, part in parts.items()})
        if augmentation is not None:
            batch = augmentation.apply_batch(batch, [parameters[share] for parameters in drawn])
        return batch if corners is None or crop is None else Window(corners[share], crop).batch(batch)
