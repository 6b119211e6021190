"""SVHN: digits of house numbers, cropped from photographs."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from mereo.data.registry import register_dataset
from mereo.errors import MereoError

if TYPE_CHECKING:
    from mereo.data.raw import RawDataset


def read(root: Path, download: bool) -> "RawDataset":
    """From the cropped digits, in SVHN or in the root itself; the "extra" images are not used."""
    from torchvision.datasets import SVHN

    from mereo.data.published import array_split, obtain
    from mereo.data.raw import RawDataset

    try:
        importlib.import_module("scipy.io")
    except ImportError as error:
        raise MereoError("svhn is stored in .mat files, which only scipy reads; run `pip install scipy`.") from error
    folder = root if (root / "train_32x32.mat").is_file() else root / "SVHN"
    names = ("train_32x32.mat", "test_32x32.mat")
    train, test = obtain(
        # Before it opens a file, torchvision compares its checksum with the published one.
        lambda: [SVHN(folder, split=split) for split in ("train", "test")],
        lambda: [SVHN(folder, split=split, download=True) for split in ("train", "test")],
        "svhn",
        all((folder / name).exists() for name in names),
        " and ".join(names),
        folder,
        download,
    )
    splits = {"train": array_split(train.data, train.labels), "test": array_split(test.data, test.labels)}
    return RawDataset(splits, tuple(str(digit) for digit in range(10)), 3)


register_dataset(
    "svhn",
    summary="digits of house numbers on photographs",
    source="Netzer and others, NIPS workshop on deep learning, 2011",
    num_classes=10,
    in_chans=3,
    size=(32, 32),
    splits={"train": 73257, "test": 26032},
    read=read,
    augment=("crop=4",),
    files=("train_32x32.mat", "SVHN/train_32x32.mat"),
)
