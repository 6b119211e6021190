"""Splits of image files, decoded by several threads; unreadable files are listed in a warning or an error."""

import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mereo.data.conversion import check_channels
from mereo.data.decode import FORMATS, decode, is_grey, reason_of
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


def _attempts(tree: Tree, size: tuple[int, int], channels: int) -> Callable[[Sequence[str]], list[Pixels | str]]:
    """A function from a file name to its pixels, or to the reason why it cannot be read."""

    def attempt(file: str) -> Pixels | str:
        try:
            with tree.open(file) as stream:
                return decode(stream, size, channels)
        except MemoryError:
            raise
        except Exception as error:  # a broken file can make a decoder raise nearly anything
            return reason_of(error)

    return lambda files: [attempt(file) for file in files]


class FileSplit(RawSplit):
    """A split of image files: paths inside a tree, and their labels int64 (n,)."""

    def __init__(self, tree: Tree, files: Sequence[str], labels: Tensor) -> None:
        self.tree, self.files, self.labels = tree, list(files), labels

    def take(self, indices: Tensor) -> "FileSplit":
        return FileSplit(self.tree, [self.files[index] for index in indices.tolist()], self.labels[indices])

    def read(self, request: Request) -> Read:
        from PIL import Image

        check_channels(3, request.channels)
        images = request.storage.allocate(len(self), request.channels, *request.size)
        pixels = images.numpy()
        kept: list[int] = []
        broken: list[tuple[str, str]] = []
        attempts = _attempts(self.tree, request.size, request.channels)
        with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count()) as pool:
            # Between one and two times its pixel limit Pillow only warns; here such a file is refused as well.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            # In pieces, so that decoded images do not accumulate before a slow disk.
            for start in range(0, len(self), _CHUNK):
                piece = self.files[start : start + _CHUNK]
                tasks = [piece[first : first + _TASK] for first in range(0, len(piece), _TASK)]
                results = chain.from_iterable(pool.map(attempts, tasks))
                for index, result in enumerate(results, start):
                    if isinstance(result, str):
                        broken.append((self.files[index], result))
                    else:
                        pixels[len(kept)] = result
                        kept.append(index)
                request.advance(len(piece))
        self._report(broken, request.strict)
        request.unreadable += broken
        return Read(images[: len(kept)], self.labels[torch.tensor(kept, dtype=torch.int64)], len(broken))

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
