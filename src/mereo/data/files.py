"""Splits of image files, decoded by several threads; unreadable files are listed in a warning or an error."""

import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mereo.data.conversion import check_channels
from mereo.data.decode import FORMATS, VOID, decode, decode_mask, fit_mask, header_size, is_grey, reason_of
from mereo.data.raw import RawSplit, Read, Request
from mereo.data.trees import Tree
from mereo.errors import MereoError

_NAMED = 10
_CHUNK, _TASK = 512, 8
_SNIFFED = 32
Pixels = npt.NDArray[np.uint8]


def _name_all(tree: Tree, broken: Sequence[tuple[str, str]]) -> str:
    """One line that lists the first few unreadable files, each with its reason."""
    shown = "; ".join(f"{file} ({reason})" for file, reason in broken[:_NAMED])
    more = f"; and {len(broken) - _NAMED} more" if len(broken) > _NAMED else ""
    count = "1 file" if len(broken) == 1 else f"{len(broken)} files"
    return f"{count} in {tree.path} could not be read as images: {shown}{more}"


Decoded = tuple[Pixels, Pixels | None]
"""Pixels of an image, uint8 (channels, height, width), and of its mask, uint8 (height, width), where it has one."""


def decode_pair(
    image: BinaryIO, mask: BinaryIO, classes: int, size: tuple[int, int], channels: int, *, reduce: bool = False
) -> tuple[Pixels, Pixels]:
    """An image and its mask; ValueError unless they have one size and the mask has only indices of classes."""
    whole, shown = decode_mask(mask), header_size(image)
    if whole.shape != shown:
        raise ValueError(f"its mask is {whole.shape[0]} x {whole.shape[1]}, and the image {shown[0]} x {shown[1]}")
    known = whole[whole != VOID]
    if known.size and int(known.max()) >= classes:
        raise ValueError(f"its mask has the index {int(known.max())}, and there are {classes} classes")
    image.seek(0)
    return decode(image, size, channels, reduce=reduce), fit_mask(whole, size)


class FileSplit(RawSplit):
    """A split of image files.

    Args:
        tree: that holds the files.
        files: paths inside the tree.
        labels: int64 (n,).
        masks: paths of the masks of the images; None for images without masks.
        classes: number of classes of the masks.
    """

    def __init__(
        self, tree: Tree, files: Sequence[str], labels: Tensor, masks: Sequence[str] | None = None, classes: int = 0
    ) -> None:
        self.tree, self.files, self.labels = tree, list(files), labels
        self.masks, self.classes = None if masks is None else list(masks), classes

    def take(self, indices: Tensor) -> "FileSplit":
        places = indices.tolist()
        masks = None if self.masks is None else [self.masks[place] for place in places]
        return FileSplit(self.tree, [self.files[place] for place in places], self.labels[indices], masks, self.classes)

    def _attempt(self, index: int, size: tuple[int, int], channels: int) -> Decoded | str:
        """The pixels of one image, or the reason why it cannot be read."""
        try:
            with self.tree.open(self.files[index]) as stream:
                if self.masks is None:
                    return decode(stream, size, channels), None
                with self.tree.open(self.masks[index]) as mask:
                    return decode_pair(stream, mask, self.classes, size, channels)
        except MemoryError:
            raise
        except Exception as error:  # a broken file can make a decoder raise nearly anything
            return reason_of(error)

    def read(self, request: Request) -> Read:
        from PIL import Image

        check_channels(3, request.channels)
        images = request.storage.allocate(len(self), request.channels, *request.size)
        masks = None if self.masks is None else request.storage.allocate(len(self), *request.size)
        kept: list[int] = []
        broken: list[tuple[str, str]] = []

        def attempts(places: range) -> list[Decoded | str]:
            return [self._attempt(place, request.size, request.channels) for place in places]

        with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count()) as pool:
            # Between one and two times its pixel limit Pillow only warns; here such a file is refused as well.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            # In pieces, so that decoded images do not accumulate before a slow disk.
            for start in range(0, len(self), _CHUNK):
                end = min(start + _CHUNK, len(self))
                tasks = [range(first, min(first + _TASK, end)) for first in range(start, end, _TASK)]
                results = chain.from_iterable(pool.map(attempts, tasks))
                for index, result in enumerate(results, start):
                    if isinstance(result, str):
                        broken.append((self.files[index], result))
                        continue
                    pixels, mask = result
                    images.numpy()[len(kept)] = pixels
                    if masks is not None and mask is not None:
                        masks.numpy()[len(kept)] = mask
                    kept.append(index)
                request.advance(end - start)
        self._report(broken, request.strict)
        request.unreadable += broken
        fields = {} if masks is None else {"masks": masks[: len(kept)]}
        return Read(images[: len(kept)], self.labels[torch.tensor(kept, dtype=torch.int64)], len(broken), fields)

    def _report(self, broken: Sequence[tuple[str, str]], strict: bool) -> None:
        if not broken:
            return
        line = _name_all(self.tree, broken)
        if strict or len(broken) == len(self):
            raise MereoError(f"{line}. Remove or repair them{', or leave out --strict' if strict else ''}.")
        warnings.warn(f"{line}. Skipped.", UserWarning, stacklevel=4)


def _headers(tree: Tree, files: Sequence[str]) -> list[tuple[str, tuple[int, int]]]:
    """The mode and (height, width) of a few files, evenly spread."""
    from PIL import Image

    headers = []
    for file in files[:: max(len(files) // _SNIFFED, 1)]:
        try:
            with tree.open(file) as stream, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with Image.open(stream, formats=FORMATS) as image:
                    headers.append((image.mode, (image.height, image.width)))
        except Exception:  # reported when the file is read
            continue
    return headers


def sniff(tree: Tree, files: Sequence[str]) -> tuple[int, tuple[int, int] | None]:
    """Channels of the images (1 if all are grey, else 3) and their common (height, width), None if they differ.

    Only the headers of a few files, evenly spread, are read.
    """
    headers = _headers(tree, files)
    sizes = {size for _, size in headers}
    grey = bool(headers) and all(is_grey(mode) for mode, _ in headers)
    return (1 if grey else 3), (sizes.pop() if len(sizes) == 1 else None)


def sniff_sizes(tree: Tree, files: Sequence[str]) -> list[tuple[int, int]]:
    """(height, width) of a few files, evenly spread."""
    return [size for _, size in _headers(tree, files)]
