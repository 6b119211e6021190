"""Shared by the readers of published data sets: downloads missing files, or names them in one line."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from mereo.data.raw import ArraySplit, RawSplit
from mereo.errors import MereoError, UsageError

ROOT_REMEDY = "give their folder as root (--data-root) or in the environment variable MEREO_DATA"
T = TypeVar("T")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def obtain(
    read: Callable[[], T],
    fetch: Callable[[], object],
    name: str,
    present: bool,
    files: str,
    folder: Path,
    download: bool,
) -> T:
    """The result of `read`, after `fetch` if the files are missing and may be downloaded.

    Args:
        read: reads the files that are present.
        fetch: downloads them.
        name: of the data set, for errors.
        present: whether every file exists.
        files: their names, for errors.
        folder: where they belong.
        download: whether missing files may be downloaded.

    Raises:
        MereoError: for files that are missing or damaged, and for a failed download.
    """
    with warnings.catch_warnings():
        # The readers of archives rely on forms that newer versions of numpy deprecate.
        warnings.simplefilter("ignore")
        if not present:
            looked = f"{name} was not found: looked for {files} in {folder}"
            if not download:
                raise MereoError(f"{looked}. Put them there, allow the download, or {ROOT_REMEDY}.")
            try:
                fetch()
            except Exception as error:  # no network, a full disk, a read-only folder, a damaged file
                line = f"{looked}, and the download failed ({_one_line(error)})"
                raise MereoError(f"{line}. Put them there, or {ROOT_REMEDY}.") from error
        try:
            return read()
        except (MemoryError, UsageError):
            raise
        except Exception as error:  # a damaged file can make a reader raise nearly anything
            line = f"{name} cannot be read from {folder} ({_one_line(error)})"
            raise MereoError(f"{line}; delete its files there and download them again.") from error


def download_published(kind: str, root: Path) -> None:
    """Download the files of a class of `torchvision.datasets` without reading them."""
    from torchvision import datasets

    # The constructor of MNIST would open processed/*.pt, if there are such files; `download` needs only the root.
    reader = getattr(datasets, kind)
    part = reader.__new__(reader)
    part.root = str(root)
    part.download()


def to_tensors(images: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """Images as they are and labels as int64, from arrays or tensors."""
    pixels = torch.from_numpy(np.ascontiguousarray(np.asarray(images)))
    return pixels, torch.from_numpy(np.asarray(labels).astype(np.int64))


def array_split(images: Any, labels: Any) -> RawSplit:
    """A split of uint8 (n, c, h, w) and any whole numbers (n,), as arrays or tensors.

    Raises:
        ValueError: if the counts differ.
    """
    if len(images) != len(labels):
        raise ValueError(f"{len(images)} images but {len(labels)} labels")
    return ArraySplit(*to_tensors(images, labels))
