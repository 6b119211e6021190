"""Splits of image files, and what the headers of a few of them tell."""

import warnings
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from torch import Tensor

from mereo.data.decode import FORMATS, VOID, decode, decode_mask, fit_mask, header_size, is_grey
from mereo.data.raw import RawSplit, Read, Request
from mereo.data.trees import Tree

_SNIFFED = 32
Pixels = npt.NDArray[np.uint8]


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

    def read(self, request: Request) -> Read:
        from mereo.data.stream.source import as_source

        source = as_source(self)
        assert source is not None
        return source.read(request)


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
