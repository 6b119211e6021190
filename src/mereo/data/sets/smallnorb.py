"""smallNORB: photographs of toys of five categories, by two cameras, from many viewpoints under six lightings.

A matrix in its files, which are named .mat but are not MATLAB's, is little-endian: a magic number that gives the type
of the values, the number of axes, the size of each (at least three are written), then the values, the last axis
fastest (https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/).
"""

import functools
import gzip
import math
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mereo.data.registry import register_dataset
from mereo.data.viewpoints import AZIMUTHS, CATEGORIES, ELEVATIONS, LIGHTINGS, count_images, takes
from mereo.errors import MereoError, UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

    from mereo.data.raw import RawDataset, RawSplit

URL = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/"
STEMS = {
    "train": "smallnorb-5x46789x9x18x6x2x96x96-training",
    "test": "smallnorb-5x01235x9x18x6x2x96x96-testing",
}
TYPES = {0x1E3D4C55: "<u1", 0x1E3D4C54: "<i4"}
"""Magic numbers of matrices of bytes and of integers, with their values' types."""
_LARGEST, _MOST_AXES, _WRITTEN = 2**30, 8, 3
"""Largest matrix in bytes (the published ones have 0.45 GB), most axes of one, and least number of sizes written."""
_AZIMUTH_STEP = 2
"""Azimuths are counted in tens of degrees."""


def _refused(path: Path, reason: str) -> UsageError:
    return UsageError(f"{path} {reason}; give the file as it is published at {URL}.")


def read_matrix(path: Path, dimensions: int) -> "npt.NDArray[Any]":
    """The matrix of a file, or of one packed with gzip. A file that is not packed is mapped rather than read.

    Raises:
        OSError: if it is not a regular file.
        UsageError: for another kind of file, and one whose length differs from its header.
    """
    import numpy as np

    from mereo.data.idx import read_pieces
    from mereo.data.regular import open_regular

    with open_regular(path) as raw, gzip.open(raw) if path.suffix == ".gz" else raw as file:
        try:
            head = file.read(8)
            magic, axes = struct.unpack("<ii", head) if len(head) == 8 else (0, 0)
            if magic not in TYPES or not 0 < axes <= _MOST_AXES:
                raise _refused(path, "is not a matrix of bytes or integers in the format of NORB")
            written = max(axes, _WRITTEN)
            sizes = file.read(4 * written)
            if len(sizes) < 4 * written:
                raise _refused(path, "ends within its header")
            shape = struct.unpack(f"<{written}i", sizes)[:axes]
            kind = np.dtype(TYPES[magic])
            if axes != dimensions or min(shape) < 1:
                raise _refused(path, f"has a matrix of sizes {shape}, not one of {dimensions} axes")
            size = math.prod(shape) * kind.itemsize
            if size > _LARGEST:
                raise _refused(path, f"claims {size} bytes, more than the limit of {_LARGEST}")
            if path.suffix != ".gz":
                start = 8 + 4 * written
                if path.stat().st_size != start + size:
                    raise _refused(path, f"has {path.stat().st_size} bytes instead of the {start + size} of its header")
                return np.memmap(path, kind, "c", start, shape)
            return np.frombuffer(read_pieces(file, size, path.name), kind).reshape(shape)
        except (
            EOFError,
            gzip.BadGzipFile,
            zlib.error,
            ValueError,
        ) as error:  # of a damaged archive, or too short
            if isinstance(error, UsageError):
                raise
            raise _refused(path, f"cannot be read ({error})") from error


def _find(root: Path) -> dict[str, dict[str, Path]]:
    """The dat, cat and info file of each split, in smallnorb or in the root itself; MereoError if one is missing."""
    for folder in (root / "smallnorb", root):
        paths = {
            split: {
                part: path
                for part in ("dat", "cat", "info")
                for path in (folder / f"{stem}-{part}.mat.gz", folder / f"{stem}-{part}.mat")
                if path.exists()
            }
            for split, stem in STEMS.items()
        }
        if all(len(parts) == 3 for parts in paths.values()):
            return paths
    from mereo.data.published import ROOT_REMEDY

    looked = ", ".join(f"{stem}-{{dat,cat,info}}.mat" for stem in STEMS.values())
    raise MereoError(
        f"smallnorb was not found: looked for {looked}, or the same with .gz, in {root / 'smallnorb'}. Get them from"
        f" {URL} and put them there, or {ROOT_REMEDY}."
    )


def _read_split(paths: Mapping[str, Path], viewpoints: str, familiar: bool) -> "RawSplit":
    import torch

    from mereo.data.published import array_split

    images, labels, info = (read_matrix(paths[part], axes) for part, axes in (("dat", 4), ("cat", 1), ("info", 2)))
    if images.dtype.itemsize != 1 or images.shape[1] != 2:
        raise _refused(paths["dat"], f"has values of type {images.dtype} in sizes {images.shape}, not pairs of bytes")
    if not len(images) == len(labels) == len(info) or info.shape[1] != 4:
        counts = f"{len(images)} pairs, {len(labels)} labels and {len(info)} x {info.shape[1]} facts"
        raise _refused(paths["dat"], f"and the files next to it have {counts}, instead of equal numbers and 4 facts")
    limits = (
        ("cat", labels, len(CATEGORIES)),
        ("info", info[:, 1], len(ELEVATIONS)),
        ("info", info[:, 2], _AZIMUTH_STEP * len(AZIMUTHS)),
    )
    for part, values, limit in limits:
        if values.min() < 0 or values.max() >= limit:
            raise _refused(paths[part], f"has values from {values.min()} to {values.max()}, not from 0 to {limit - 1}")
    places = zip(info[:, 1].tolist(), info[:, 2].tolist(), strict=True)
    chosen = [
        index
        for index, (elevation, azimuth) in enumerate(places)
        if takes(ELEVATIONS[elevation], 10 * azimuth, viewpoints, familiar)
    ]
    whole = array_split(images, labels)
    return whole if len(chosen) == len(labels) else whole.take(torch.tensor(chosen, dtype=torch.int64))


def read(root: Path, download: bool, *, viewpoints: str = "all", familiar: bool = False) -> "RawDataset":
    """From the six published files, packed with gzip or not, in smallnorb or in the root; none is downloaded."""
    from mereo.data.raw import RawDataset

    splits = {
        split: _read_split(paths, viewpoints, split == "train" or familiar) for split, paths in _find(root).items()
    }
    if not all(len(split) for split in splits.values()):
        raise UsageError(f"viewpoints is {viewpoints!r}, but the files in {root} have no images of them; give 'all'.")
    return RawDataset(splits, CATEGORIES, 2)


def configure(*, viewpoints: str = "all", familiar: bool = False) -> Mapping[str, Any]:
    """Options: viewpoints to train on (all; azimuth or elevation for a third of them, tested on the others, or with
    familiar=true on the same)."""
    counts = count_images(25, LIGHTINGS, viewpoints, familiar)
    return {"read": functools.partial(read, viewpoints=viewpoints, familiar=familiar), "splits": counts}


register_dataset(
    "smallnorb",
    summary="photographs of toys of five categories, two cameras, many viewpoints",
    source="LeCun, Huang, Bottou, CVPR 2004",
    num_classes=5,
    in_chans=2,
    size=(96, 96),
    splits={"train": 24300, "test": 24300},
    read=read,
    augment=("brightness=0.25", "contrast=0.5:1.5"),
    files=tuple(f"{folder}{STEMS['train']}-dat.mat{packed}" for folder in ("smallnorb/", "") for packed in ("", ".gz")),
    configure=configure,
)
