"""USPS: handwritten digits of zip codes on envelopes."""

from pathlib import Path
from typing import TYPE_CHECKING

from mereo.data.registry import register_dataset

if TYPE_CHECKING:
    from mereo.data.raw import RawDataset

FILES = ("usps.bz2", "usps.t.bz2")


def read(root: Path, download: bool) -> "RawDataset":
    """From the two files of LIBSVM's collection."""
    from torchvision.datasets import USPS

    from mereo.data.published import array_split, obtain
    from mereo.data.raw import RawDataset

    train, test = obtain(
        lambda: [USPS(root, train=train) for train in (True, False)],
        lambda: [USPS(root, train=train, download=True) for train in (True, False)],
        "usps",
        all((root / name).exists() for name in FILES),
        " and ".join(FILES),
        root,
        download,
    )
    splits = {"train": array_split(train.data[:, None], train.targets)}
    splits["test"] = array_split(test.data[:, None], test.targets)
    return RawDataset(splits, tuple(str(digit) for digit in range(10)), 1)


register_dataset(
    "usps",
    summary="handwritten digits of zip codes",
    source="Hull, A database for handwritten text recognition research, doi:10.1109/34.291440",
    num_classes=10,
    in_chans=1,
    size=(16, 16),
    splits={"train": 7291, "test": 2007},
    read=read,
    augment=("rotate=10", "shift=1"),
    files=FILES,
)
