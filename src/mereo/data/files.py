"""The contents of folders, archives and tables of image files, and facts from the headers of a few images."""

import warnings
from typing import NamedTuple

from mereo.data.decode import FORMATS, is_grey
from mereo.data.encoded import FileSplit, Source

_SNIFFED = 32


class Layout(NamedTuple):
    """What a folder, an archive or a table holds.

    Attributes:
        splits: that it has itself.
        names: of the classes.
        evidence: what it was recognised by, in a few words.
    """

    splits: dict[str, FileSplit]
    names: tuple[str, ...]
    evidence: str


def _headers(source: Source) -> list[tuple[str, tuple[int, int]]]:
    """The mode and (height, width) of a few images, evenly spread; of neighbours if these are read together."""
    from PIL import Image

    step = 1 if source.store.sequential else max(len(source) // _SNIFFED, 1)
    headers = []
    for index in range(0, len(source), step)[: _SNIFFED + 1]:
        try:
            with source.open(index) as stream, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with Image.open(stream, formats=FORMATS) as image:
                    headers.append((image.mode, (image.height, image.width)))
        except Exception:  # reported when the file is read
            continue
    return headers


def sniff(source: Source) -> tuple[int, tuple[int, int] | None]:
    """Channels of the images (1 if all are grey, else 3) and their common (height, width), None if they differ.

    Only the headers of a few images are read.
    """
    headers = _headers(source)
    sizes = {size for _, size in headers}
    grey = bool(headers) and all(is_grey(mode) for mode, _ in headers)
    return (1 if grey else 3), (sizes.pop() if len(sizes) == 1 else None)


def sniff_sizes(source: Source) -> list[tuple[int, int]]:
    """(height, width) of a few images, evenly spread."""
    return [size for _, size in _headers(source)]
