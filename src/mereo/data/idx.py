"""The idx files of MNIST and similar sets: a magic number, big-endian 32-bit sizes, then the values."""

import gzip
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from mereo.data.published import array_split, download_published, obtain
from mereo.data.raw import RawDataset
from mereo.data.regular import open_regular

_UINT8 = 8
_PREFIXES = {"train": "train", "test": "t10k"}
_LARGEST = 2**30
"""Largest file in bytes of values; the largest published one, of EMNIST, has 0.6 GB."""


def _candidates(folder: Path, prefix: str, kind: str) -> list[Path]:
    name = f"{prefix}-{kind}-ubyte"
    return [folder / name, folder / f"{name}.gz"]


def _existing(candidates: Sequence[Path]) -> Path | None:
    return next((path for path in candidates if path.exists()), None)


def read_pieces(file: "IO[bytes] | gzip.GzipFile", size: int, name: str) -> bytearray:
    """The rest of a file, which must have `size` bytes. It is read in pieces, so that a false header takes no memory.

    Raises:
        ValueError: for fewer or more bytes.
    """
    content = bytearray()
    while len(content) <= size and (piece := file.read(min(size + 1 - len(content), 2**24))):
        content += piece
    if len(content) != size:
        more = "more" if len(content) > size else f"{len(content)}"
        raise ValueError(f"{name} holds {more} bytes instead of the {size} of its header")
    return content


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """The array of an idx file of bytes, or of one packed with gzip.

    Raises:
        OSError: if it is not a regular file.
        ValueError: for another kind of file, or one whose length differs from its header.
    """
    with open_regular(path) as raw, gzip.open(raw) if path.suffix == ".gz" else raw as file:
        head = file.read(4 + 4 * dimensions)
        if len(head) < 4 + 4 * dimensions or head[:4] != bytes((0, 0, _UINT8, dimensions)):
            raise ValueError(f"{path.name} is not an idx file of bytes with {dimensions} dimensions")
        shape = struct.unpack(f">{dimensions}I", head[4:])
        size = math.prod(shape)
        if size > _LARGEST:
            raise ValueError(f"{path.name} claims {size} values, more than the limit of {_LARGEST}")
        content = read_pieces(file, size, path.name)
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def read_idx_dataset(root: Path, download: bool, *, name: str, kind: str, classes: tuple[str, ...]) -> RawDataset:
    """A data set of four idx files in `kind`/raw, packed with gzip or not.

    Args:
        root: data root.
        download: whether missing files may be downloaded.
        name: as registered.
        kind: name of the folder, and of the class of `torchvision.datasets` that downloads it.
        classes: their names, in the order of the labels.
    """
    folder = root / kind / "raw"
    wanted = {
        split: (_candidates(folder, prefix, "images-idx3"), _candidates(folder, prefix, "labels-idx1"))
        for split, prefix in _PREFIXES.items()
    }

    def read() -> RawDataset:
        splits = {}
        for split, candidates in wanted.items():
            paths = [_existing(choices) or choices[0] for choices in candidates]
            images, labels = read_idx(paths[0], 3), read_idx(paths[1], 1)
            if len(images) != len(labels):
                counts = f"{paths[0].name} has {len(images)} images, {paths[1].name} has {len(labels)} labels"
                raise ValueError(f"{counts}; the counts must be equal")
            if not len(labels) or labels.max() >= len(classes):
                highest = f"labels up to {labels.max()}" if len(labels) else "no labels"
                raise ValueError(f"{paths[1].name} has {highest}; they must be below {len(classes)}")
            splits[split] = array_split(images[:, None], labels)
        return RawDataset(splits, classes, 1)

    names = [choices[0].name for candidates in wanted.values() for choices in candidates]
    return obtain(
        read,
        lambda: download_published(kind, root),
        name,
        all(_existing(choices) for candidates in wanted.values() for choices in candidates),
        f"{', '.join(names[:-1])} and {names[-1]}",
        folder,
        download,
    )
