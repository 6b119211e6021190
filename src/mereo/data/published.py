"""Published datasets through torchvision's readers; what is missing is downloaded, or said in one line."""

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mereo.data.folder import read_folder
from mereo.data.raw import ArraySplit, RawDataset, RawSplit
from mereo.errors import MereoError

ROOT_REMEDY = "name the folder that has them with root or the environment variable MEREO_DATA"
DIGITS = tuple(str(digit) for digit in range(10))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _obtain(make: Callable[[bool, bool], Any], name: str, files: str, folder: Path, download: bool) -> tuple[Any, Any]:
    """Both splits from `make(train, download)`; files that are there are read, and only missing ones are fetched."""

    def both(fetch: bool) -> tuple[Any, Any]:
        with warnings.catch_warnings():
            # The pickles of CIFAR-10 and the archives' readers lean on forms that newer numpy deprecates.
            warnings.simplefilter("ignore")
            return make(True, fetch), make(False, fetch)

    looked = f"{name} was not found: looked for {files} in {folder}"
    try:
        return both(False)
    except Exception as error:
        # torchvision says "not found" of files that are not there, and of those whose checksum is wrong.
        if not (isinstance(error, RuntimeError) and "not found" in str(error)):
            line = f"{name} cannot be read from {folder} ({_one_line(error)})"
            raise MereoError(f"{line}; delete its files there and get them again.") from error
        if not download:
            raise MereoError(f"{looked}. Put them there, allow the download, or {ROOT_REMEDY}.") from error
    try:
        return both(True)
    except Exception as error:  # no network, a full disk, a read-only folder, a damaged file
        line = f"{looked}, and the download failed ({_one_line(error)})"
        raise MereoError(f"{line}. Put them there, or {ROOT_REMEDY}.") from error


def _arrays(images: Any, labels: Any) -> RawSplit:
    """uint8 (n, c, h, w) and any whole numbers (n,), as arrays or tensors."""
    pixels = torch.from_numpy(np.ascontiguousarray(np.asarray(images)))
    return ArraySplit(pixels, torch.from_numpy(np.asarray(labels).astype(np.int64)))


def read_mnist(root: Path, download: bool) -> RawDataset:
    """From MNIST/raw."""
    return _read_mnist_like("mnist", "MNIST", root, download)


def read_fashion_mnist(root: Path, download: bool) -> RawDataset:
    """From FashionMNIST/raw."""
    return _read_mnist_like("fashion_mnist", "FashionMNIST", root, download)


def _read_mnist_like(name: str, kind: str, root: Path, download: bool) -> RawDataset:
    from torchvision import datasets

    reader = getattr(datasets, kind)
    files = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte"
    both = _obtain(
        lambda train, fetch: reader(root, train=train, download=fetch), name, files, root / kind / "raw", download
    )
    train, test = (_arrays(part.data.unsqueeze(1), part.targets) for part in both)
    names = DIGITS if name == "mnist" else tuple(reader.classes)
    return RawDataset({"train": train, "test": test}, names, 1)


def read_svhn(root: Path, download: bool) -> RawDataset:
    """From the cropped digits, in SVHN or in the root itself; the "extra" images are not used."""
    from torchvision.datasets import SVHN

    try:
        importlib.import_module("scipy.io")
    except ImportError as error:
        raise MereoError("svhn is stored in .mat files, which only scipy reads; run `pip install scipy`.") from error
    folder = root if (root / "train_32x32.mat").is_file() else root / "SVHN"
    both = _obtain(
        lambda train, fetch: SVHN(folder, split="train" if train else "test", download=fetch),
        "svhn",
        "train_32x32.mat and test_32x32.mat",
        folder,
        download,
    )
    train, test = (_arrays(part.data, part.labels) for part in both)
    return RawDataset({"train": train, "test": test}, DIGITS, 3)


def read_cifar10(root: Path, download: bool) -> RawDataset:
    """From the pickles, or the unpacked folder cifar10, or an archive cifar10*.zip: whichever is there."""
    from torchvision.datasets import CIFAR10

    pickles = root / "cifar-10-batches-py"
    unpacked = [root / "cifar10", *sorted(root.glob("cifar10*.zip"))]
    found = [path for path in unpacked if path.is_file() or (path / "train").is_dir()]
    if found and not pickles.is_dir():
        dataset = read_folder(found[0])
        return RawDataset(dataset.splits, dataset.class_names, 3)
    both = _obtain(
        lambda train, fetch: CIFAR10(root, train=train, download=fetch),
        "cifar10",
        "the folder cifar-10-batches-py, the folder cifar10 of train/<class>/* and test/<class>/*, or cifar10*.zip",
        root,
        download,
    )
    train, test = (_arrays(part.data.transpose(0, 3, 1, 2), part.targets) for part in both)
    return RawDataset({"train": train, "test": test}, tuple(both[0].classes), 3)
