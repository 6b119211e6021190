"""Fashion-MNIST: grey photographs of clothing, in the files of MNIST."""

from pathlib import Path
from typing import TYPE_CHECKING

from mereo.data.registry import register_dataset

if TYPE_CHECKING:
    from mereo.data.raw import RawDataset

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


def read(root: Path, download: bool) -> "RawDataset":
    """From FashionMNIST/raw."""
    from mereo.data.idx import read_idx_dataset

    return read_idx_dataset("fashion_mnist", "FashionMNIST", CLASSES, root, download)


register_dataset(
    "fashion_mnist",
    summary="ten kinds of clothing, grey",
    source="Xiao, Rasul, Vollgraf, arXiv:1708.07747",
    num_classes=10,
    in_chans=1,
    size=(28, 28),
    splits={"train": 60000, "test": 10000},
    read=read,
    files=("FashionMNIST/raw/train-images-idx3-ubyte", "FashionMNIST/raw/train-images-idx3-ubyte.gz"),
)
