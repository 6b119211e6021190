"""Collections of encoded images that are read one by one, and their splits."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mereo.data.decode import decode
from mereo.data.files import FileSplit, decode_pair
from mereo.data.raw import RawSplit, Read, Request
from mereo.data.trees import Tree
from mereo.errors import MereoError

_CHUNK = 512


class Store(ABC):
    """Encoded images by number, from any source.

    Attributes:
        sequential: whether neighbours are read together, so that a fully random order would read everything many times.
    """

    sequential = False

    @abstractmethod
    def open(self, number: int) -> BinaryIO:
        """The encoded bytes of one image; may be called from several threads."""

    @abstractmethod
    def name(self, number: int) -> str:
        """The name of the image in messages."""

    def groups(self, numbers: Tensor) -> Tensor:
        """The file, or part of a file that is read at once, of each image: int64 (n,) -> int64 (n,)."""
        return torch.zeros_like(numbers)


class FileStore(Store):
    """Files of a folder or of a zip archive, or at paths of their own when `tree` is None."""

    def __init__(self, tree: Tree | None, files: Sequence[str]) -> None:
        self._tree, self._files = tree, files

    def open(self, number: int) -> BinaryIO:
        file = self._files[number]
        return Path(file).open("rb") if self._tree is None else self._tree.open(file)

    def name(self, number: int) -> str:
        return self._files[number]


class Source(RawSplit):
    """A split of encoded images; `StreamedSet` decodes them while training, `read` all at once.

    Args:
        store: of the images.
        numbers: of the images in the store.
        labels: of the images.
        masks: the masks under the same numbers; None for images without masks.
        classes: number of classes of the masks.

    Shapes: numbers int64 (n,), labels int64 (n,).
    """

    def __init__(
        self, store: Store, numbers: Tensor, labels: Tensor, masks: Store | None = None, classes: int = 0
    ) -> None:
        self.store, self.numbers, self.labels, self.masks, self.classes = store, numbers, labels, masks, classes

    def take(self, indices: Tensor) -> "Source":
        return Source(self.store, self.numbers[indices], self.labels[indices], self.masks, self.classes)

    def decode(
        self, index: int, size: tuple[int, int], channels: int, out: npt.NDArray[np.uint8], *, reduce: bool
    ) -> None:
        """Write the pixels of one image, and of its mask as a further channel where there are masks.

        Shapes: out uint8 (channels, *size), or (channels + 1, *size) with masks.
        """
        with self.open(index) as stream:
            if self.masks is None:
                out[:] = decode(stream, size, channels, reduce=reduce)
                return
            with self.masks.open(int(self.numbers[index])) as mask:
                out[:channels], out[channels] = decode_pair(stream, mask, self.classes, size, channels, reduce=reduce)

    def open(self, index: int) -> BinaryIO:
        """The encoded bytes of one image; may be called from several threads."""
        return self.store.open(int(self.numbers[index]))

    def name(self, index: int) -> str:
        """The name of the image in messages."""
        return self.store.name(int(self.numbers[index]))

    @property
    def groups(self) -> Tensor:
        """Which file holds each image: int64 (n,)."""
        return self.store.groups(self.numbers)

    def read(self, request: Request) -> Read:
        from mereo.data.stream.streamed_set import StreamedSet

        reader = StreamedSet(self, (), request.size, request.channels, strict=request.strict, reduce=False)
        images = request.storage.allocate(len(self), request.channels, *request.size)
        masks = None if self.masks is None else request.storage.allocate(len(self), *request.size)
        kept: list[Tensor] = []
        count = 0
        for start in range(0, len(self), _CHUNK):
            indices = torch.arange(start, min(start + _CHUNK, len(self)))
            pixels, readable = reader.decode(indices)
            kept.append(indices[readable])
            images[count : count + len(kept[-1])] = pixels[readable, : request.channels]
            if masks is not None:
                masks[count : count + len(kept[-1])] = pixels[readable, -1]
            count += len(kept[-1])
            request.advance(len(indices))
        request.unreadable += reader.unreadable
        if not count:
            raise MereoError(f"none of the {len(self)} images could be read, {self.name(0)} first; repair them.")
        fields = {} if masks is None else {"masks": masks[:count]}
        return Read(images[:count], self.labels[torch.cat(kept)], len(self) - count, fields)


def as_source(split: RawSplit) -> Source | None:
    """The same split, read one image at a time; None for one that is in memory anyway."""
    if isinstance(split, Source):
        return split
    if isinstance(split, FileSplit):
        masks = None if split.masks is None else FileStore(split.tree, split.masks)
        return Source(FileStore(split.tree, split.files), torch.arange(len(split)), split.labels, masks, split.classes)
    return None
