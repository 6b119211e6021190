"""Collections of encoded images that are read one by one, and their splits."""

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from itertools import chain
from pathlib import Path
from typing import BinaryIO, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mereo.data.conversion import check_channels
from mereo.data.decode import Colours, decode, decode_pair, reason_of
from mereo.data.raw import RawSplit, Read, Request
from mereo.data.trees import Tree
from mereo.errors import MereoError
from mereo.runtime.text import counted

_NAMED = 10
_CHUNK, _TASK = 512, 8
Pixels = npt.NDArray[np.uint8]


class Store(ABC):
    """Encoded images by number, from any source.

    Attributes:
        sequential: whether neighbours are read together, so that a fully random order would read everything many times.
        place: words for messages, such as " in photos/"; empty if the name of an image has its place.
    """

    sequential = False
    place = ""

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
        self.place = "" if tree is None else f" in {tree.path}"

    def open(self, number: int) -> BinaryIO:
        file = self._files[number]
        return Path(file).open("rb") if self._tree is None else self._tree.open(file)

    def name(self, number: int) -> str:
        return self._files[number]


class Source(RawSplit):
    """A split of encoded images; `StreamedSet` decodes them while training, `read` all at once.

    Attributes:
        streamed: whether they are decoded while training unless the user says otherwise.
        fields: further fields of a batch, of each image: multi_hot, values.

    Args:
        store: of the images.
        numbers: of the images in the store.
        labels: of the images.
        masks: the masks under the same numbers; None for images without masks.
        classes: number of classes of the masks.
        colours: of the classes, if masks are pictures in these colours.

    Shapes: numbers int64 (n,), labels int64 (n,).
    """

    streamed: ClassVar[bool] = True

    def __init__(
        self,
        store: Store,
        numbers: Tensor,
        labels: Tensor,
        masks: Store | None = None,
        classes: int = 0,
        colours: Colours = (),
    ) -> None:
        self.store, self.numbers, self.labels, self.masks, self.classes = store, numbers, labels, masks, classes
        self.colours = colours
        self.fields: dict[str, Tensor] = {}

    def take(self, indices: Tensor) -> Self:
        part = copy(self)
        part.numbers, part.labels = self.numbers[indices], self.labels[indices]
        part.fields = {name: values[indices] for name, values in self.fields.items()}
        return part

    def fitted_to(self, size: tuple[int, int]) -> Self:
        """The same split with fields that belong to images of this size; only boxes depend on it."""
        return self

    def decode(
        self, index: int, size: tuple[int, int], channels: int, out: npt.NDArray[np.uint8], *, reduce: bool
    ) -> None:
        """Write the pixels of one image, and of its mask as a further channel if there are masks.

        Shapes: out uint8 (channels, *size), or (channels + 1, *size) with masks.
        """
        with self.open(index) as stream:
            if self.masks is None:
                out[:] = decode(stream, size, channels, reduce=reduce)
                return
            with self.masks.open(int(self.numbers[index])) as mask:
                out[:channels], out[channels] = decode_pair(
                    stream, mask, self.classes, size, channels, colours=self.colours, reduce=reduce
                )

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
        """All images, decoded by several threads; unreadable ones are listed in a warning or an error."""
        from PIL import Image

        check_channels(3, request.channels)
        size, channels = request.size, request.channels
        images = request.storage.allocate(len(self), channels, *size)
        masks = None if self.masks is None else request.storage.allocate(len(self), *size)
        kept: list[int] = []
        broken: list[tuple[str, str]] = []

        def attempts(places: range) -> list[Pixels | str]:
            """The pixels of each image, or the reason why it cannot be read."""
            return [self._attempt(place, size, channels) for place in places]

        with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count()) as pool:
            # Between one and two times its pixel limit Pillow only warns; here such a file is refused as well.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            # In pieces, so that decoded images do not accumulate before a slow disk.
            for start in range(0, len(self), _CHUNK):
                end = min(start + _CHUNK, len(self))
                tasks = [range(first, min(first + _TASK, end)) for first in range(start, end, _TASK)]
                for index, result in enumerate(chain.from_iterable(pool.map(attempts, tasks)), start):
                    if isinstance(result, str):
                        broken.append((self.name(index), result))
                        continue
                    images.numpy()[len(kept)] = result[:channels]
                    if masks is not None:
                        masks.numpy()[len(kept)] = result[-1]
                    kept.append(index)
                request.advance(end - start)
        self._report(broken, request.strict)
        request.unreadable += broken
        places = torch.tensor(kept, dtype=torch.int64)
        fields = {name: values[places] for name, values in self.fitted_to(size).fields.items()}
        if masks is not None:
            fields["masks"] = masks[: len(kept)]
        return Read(images[: len(kept)], self.labels[places], len(broken), fields)

    def _attempt(self, index: int, size: tuple[int, int], channels: int) -> Pixels | str:
        out = np.empty((channels + (self.masks is not None), *size), dtype=np.uint8)
        try:
            self.decode(index, size, channels, out, reduce=False)
        except MemoryError:
            raise
        except Exception as error:  # a broken file can make a decoder raise nearly anything
            return reason_of(error)
        return out

    def _report(self, broken: Sequence[tuple[str, str]], strict: bool) -> None:
        """One line that lists the first few unreadable images, each with its reason."""
        if not broken:
            return
        line = unreadable(broken, self.store.place)
        if strict or len(broken) == len(self):
            raise MereoError(f"{line}. Remove or repair them{', or leave out --strict' if strict else ''}.")
        warnings.warn(f"{line}. Skipped.", UserWarning, stacklevel=4)


def unreadable(broken: Sequence[tuple[str, str]], place: str) -> str:
    """A line with the first few files (name, reason) at a place, such as " in photos", that could not be read."""
    shown = "; ".join(f"{name} ({reason})" for name, reason in broken[:_NAMED])
    more = f"; and {len(broken) - _NAMED} more" if len(broken) > _NAMED else ""
    return f"{counted(len(broken), 'file')}{place} could not be read as images: {shown}{more}"


class FileSplit(Source):
    """A split of image files.

    Args:
        tree: that holds the files.
        files: paths inside the tree.
        labels: int64 (n,).
        masks: paths of the masks of the images; None for images without masks.
        classes: number of classes of the masks.
        colours: of the classes, if masks are pictures in these colours.
    """

    streamed = False

    def __init__(
        self,
        tree: Tree,
        files: Sequence[str],
        labels: Tensor,
        masks: Sequence[str] | None = None,
        classes: int = 0,
        colours: Colours = (),
    ) -> None:
        of_masks = None if masks is None else FileStore(tree, masks)
        super().__init__(FileStore(tree, files), torch.arange(len(files)), labels, of_masks, classes, colours)

    @property
    def files(self) -> list[str]:
        """The paths of the images inside the tree."""
        return [self.name(index) for index in range(len(self))]


def as_source(split: RawSplit) -> Source | None:
    """The split as one whose images are read one at a time; None for one that is in memory anyway."""
    return split if isinstance(split, Source) else None
