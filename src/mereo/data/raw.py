"""Splits before they are read: labels are known, pixels are converted to a requested size and colour when read."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Self

from torch import Tensor

from mereo.data.conversion import check_channels, convert_into
from mereo.data.fields import check_fields, fit_fields
from mereo.data.storage import Storage

Progress = Callable[[int, int], None]


@dataclass
class Request:
    """The form in which pixels are requested.

    Attributes:
        size: height and width.
        channels: 1 or 3, or what the source has.
        storage: where they are stored.
        strict: whether an unreadable file is an error, rather than skipped with a warning.
        advance: called with the number of images done since the last call.
        unreadable: gets the name of each file that could not be read, and why.
    """

    size: tuple[int, int]
    channels: int
    storage: Storage = field(default_factory=Storage)
    strict: bool = False
    advance: Callable[[int], None] = lambda count: None
    unreadable: list[tuple[str, str]] = field(default_factory=list)


class Read(NamedTuple):
    """Pixels uint8 (n, channels, *size), labels int64 (n,), how many images were unreadable, and further fields."""

    images: Tensor
    labels: Tensor
    skipped: int
    fields: Mapping[str, Tensor] = MappingProxyType({})


class RawSplit(ABC):
    """One split of a source. `labels`: int64 (n,), on the CPU."""

    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def take(self, indices: Tensor) -> Self:
        """The part at `indices`; nothing is read."""

    @abstractmethod
    def read(self, request: Request) -> Read:
        """All images, converted as requested."""


class ArraySplit(RawSplit):
    """A split whose source is one array.

    Args:
        images: uint8 (N, c, h, w).
        labels: int64 (N,).
        indices: int64 (n,), the images of the split; all images when None.
        fields: masks, boxes and others by name, as in `ImageSet`, for all N images.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        indices: Tensor | None = None,
        fields: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        check_fields(fields, len(images), (images.shape[2], images.shape[3]))
        self._images, self._all_labels, self._fields = images, labels, fields
        self._indices = indices
        self.labels = labels if indices is None else labels[indices]

    def take(self, indices: Tensor) -> "ArraySplit":
        absolute = indices if self._indices is None else self._indices[indices]
        return ArraySplit(self._images, self._all_labels, absolute, self._fields)

    def read(self, request: Request) -> Read:
        check_channels(self._images.shape[1], request.channels)
        indices = self._indices
        if indices is None and self._images.shape[1:] == (request.channels, *request.size):
            request.advance(len(self))
            return Read(self._images, self.labels, 0, self._fields)
        images = request.storage.allocate(len(self), request.channels, *request.size)
        convert_into(
            images, self._images, self.labels.new_ones(len(self)).cumsum(0) - 1 if indices is None else indices
        )
        request.advance(len(self))
        native = self._images.shape[2], self._images.shape[3]
        chosen = {name: values if indices is None else values[indices] for name, values in self._fields.items()}
        return Read(images, self.labels, 0, fit_fields(chosen, native, request.size))


@dataclass(frozen=True)
class RawDataset:
    """The contents of a source: splits "train", "test" and maybe "validation"; class names; channels of its images."""

    splits: dict[str, RawSplit]
    class_names: tuple[str, ...]
    in_chans: int
