"""Data sets by name, image folders and tables of images, and augmentation of whole batches on the device.

Only the registry of data sets is imported at once, so that listing them does not need PyTorch; other names import what
they need when they are first used.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mereo.data.augmentation import OPERATIONS, Augmentation
    from mereo.data.batch import Batch
    from mereo.data.geometric import take_window
    from mereo.data.images import Images, ImageSet
    from mereo.data.load import Splits, Wanted, load_size, load_split, load_splits
    from mereo.data.operation import Operation
    from mereo.data.overlay import OverlaidPairs
    from mereo.data.registry import DatasetInfo, register_dataset
    from mereo.data.sets import DATASETS, list_datasets
    from mereo.data.sources import data_root, dataset_info, open_dataset
    from mereo.data.text import TokenWindows

_HOMES = {
    "DATASETS": "sets",
    "OPERATIONS": "augmentation",
    "Augmentation": "augmentation",
    "Batch": "batch",
    "DatasetInfo": "registry",
    "ImageSet": "images",
    "Images": "images",
    "Operation": "operation",
    "OverlaidPairs": "overlay",
    "TokenWindows": "text",
    "Splits": "load",
    "Wanted": "load",
    "data_root": "sources",
    "dataset_info": "sources",
    "list_datasets": "sets",
    "load_size": "load",
    "load_split": "load",
    "load_splits": "load",
    "open_dataset": "sources",
    "register_dataset": "registry",
    "take_window": "geometric",
}

__all__ = [
    "DATASETS",
    "OPERATIONS",
    "Augmentation",
    "Batch",
    "DatasetInfo",
    "ImageSet",
    "Images",
    "Operation",
    "OverlaidPairs",
    "Splits",
    "TokenWindows",
    "Wanted",
    "data_root",
    "dataset_info",
    "list_datasets",
    "load_size",
    "load_split",
    "load_splits",
    "open_dataset",
    "register_dataset",
    "take_window",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        setattr(sys.modules[__name__], name, value)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
