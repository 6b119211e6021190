"""MNIST: handwritten digits."""

from pathlib import Path
from typing import TYPE_CHECKING

from mereo.data.registry import register_dataset

if TYPE_CHECKING:
    from mereo.data.raw import RawDataset

FILES = ("MNIST/raw/train-images-idx3-ubyte", "MNIST/raw/train-images-idx3-ubyte.gz")


def read(root: Path, download: bool) -> "RawDataset":
    """From MNIST/raw."""
    from mereo.data.idx import read_idx_dataset

    return read_idx_dataset("mnist", "MNIST", tuple(str(digit) for digit in range(10)), root, download)


register_dataset(
    "mnist",
    summary="handwritten digits",
    source="LeCun, Bottou, Bengio, Haffner, Proceedings of the IEEE, 1998",
    num_classes=10,
    in_chans=1,
    size=(28, 28),
    splits={"train": 60000, "test": 10000},
    read=read,
    augment=("rotate=15", "shift=2"),
    files=FILES,
)
