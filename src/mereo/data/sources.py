"""Datasets by name, and folders of images by path: what there is, and where it is read from."""

import fnmatch
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mereo.data.digits import read_digits
from mereo.data.files import sniff
from mereo.data.folder import Layout, read_folder, read_layout
from mereo.data.published import read_cifar10, read_fashion_mnist, read_mnist, read_svhn
from mereo.data.raw import RawDataset
from mereo.errors import UsageError, unknown


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a dataset before it is read.

    Attributes:
        name: as given to `load_splits`.
        summary: one line.
        source: where it is from.
        num_classes, in_chans: of its images.
        size: native (height, width); None if images differ.
        splits: number of images of each split that the source itself has.
        layout: of an image folder: what its scan found, so that it need not be scanned again.
    """

    name: str
    summary: str
    source: str
    num_classes: int
    in_chans: int
    size: tuple[int, int] | None
    splits: Mapping[str, int]
    layout: Layout | None = field(default=None, repr=False, compare=False)


DATASETS: dict[str, DatasetInfo] = {
    info.name: info
    for info in (
        DatasetInfo(
            "cifar10",
            "ten kinds of animals and vehicles, in colour",
            "Krizhevsky, Learning multiple layers of features from tiny images, 2009",
            10,
            3,
            (32, 32),
            {"train": 50000, "test": 10000},
        ),
        DatasetInfo(
            "digits",
            "handwritten digits of 8 x 8 pixels, part of the package",
            "Alpaydin, Kaynak, Optical recognition of handwritten digits, UCI, 1998 (CC BY 4.0)",
            10,
            1,
            (8, 8),
            {"train": 1438, "test": 359},
        ),
        DatasetInfo(
            "fashion_mnist",
            "ten kinds of clothing, grey",
            "Xiao, Rasul, Vollgraf, arXiv 1708.07747",
            10,
            1,
            (28, 28),
            {"train": 60000, "test": 10000},
        ),
        DatasetInfo(
            "mnist",
            "handwritten digits",
            "LeCun, Bottou, Bengio, Haffner, Proceedings of the IEEE, 1998",
            10,
            1,
            (28, 28),
            {"train": 60000, "test": 10000},
        ),
        DatasetInfo(
            "multimnist",
            "two overlapping handwritten digits of different classes, overlaid as they are asked for",
            "Sabour, Frosst, Hinton, arXiv 1710.09829; from mnist",
            10,
            1,
            (36, 36),
            {"train": 60000, "test": 10000},
        ),
        DatasetInfo(
            "svhn",
            "digits of house numbers on photographs",
            "Netzer and others, NIPS workshop on deep learning, 2011",
            10,
            3,
            (32, 32),
            {"train": 73257, "test": 26032},
        ),
    )
}

_READERS: dict[str, Callable[[Path, bool], RawDataset]] = {
    "cifar10": read_cifar10,
    "digits": lambda root, download: read_digits(),
    "fashion_mnist": read_fashion_mnist,
    "mnist": read_mnist,
    "multimnist": read_mnist,
    "svhn": read_svhn,
}


def list_datasets(pattern: str = "*") -> list[str]:
    """Names of datasets that match a shell pattern."""
    return fnmatch.filter(sorted(DATASETS), pattern)


def data_root(root: str | Path | None = None) -> Path:
    """Where datasets lie: `root`, else the environment variable MEREO_DATA, else the folder data."""
    return Path(root or os.environ.get("MEREO_DATA") or "data").expanduser()


def _image_folder(data: str | Path, root: str | Path | None) -> Path:
    """The folder or archive at a path, taken from here or else from the root."""
    text, path = str(data), Path(data).expanduser()
    for place in (path, data_root(root) / path):
        if place.is_dir() or (place.is_file() and place.suffix.lower() == ".zip"):
            return place
    if path.is_file():
        raise UsageError(
            f"data is {text!r}, a file; it must be a folder of images, a .zip of one, or a dataset's name."
        )
    if os.sep in text or text.startswith((".", "~")) or path.suffix:
        raise UsageError(f"data is {text!r}, and there is no such folder; name one, or one of {', '.join(DATASETS)}.")
    raise UsageError(f"{unknown('dataset', text, DATASETS)} There is no folder of that name either.")


def open_dataset(
    data: str | Path, root: str | Path | None = None, *, download: bool = True, info: DatasetInfo | None = None
) -> RawDataset:
    """The splits of a dataset by name, or of the folder or .zip archive of images at a path.

    With its `info` from `dataset_info`, a folder is not scanned again.
    """
    if str(data) in _READERS:
        return _READERS[str(data)](data_root(root), download)
    if info is not None and info.layout is not None:
        return read_folder(Path(info.source), info.layout, info.in_chans)
    return read_folder(_image_folder(data, root))


def dataset_info(data: str | Path, root: str | Path | None = None) -> DatasetInfo:
    """What is known of a dataset, by name or by path of an image folder; no image is decoded."""
    if str(data) in DATASETS:
        return DATASETS[str(data)]
    path = _image_folder(data, root)
    layout = splits, names = read_layout(path)
    channels, size = sniff(splits["train"].tree, splits["train"].files)
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    counts = {split: len(part) for split, part in splits.items()}
    smallest = int(np.bincount(splits["train"].labels.numpy()).min())
    summary = f"images in folders, {len(names)} classes ({shown}), at least {smallest} training images each"
    return DatasetInfo(str(data), summary, str(path), len(names), channels, size, counts, layout)
