"""Datasets by name, image folders, MultiMNIST, and augmentation of whole batches on the device."""

from mereo.data.augmentation import OPERATIONS, Augmentation
from mereo.data.batch import Batch
from mereo.data.geometric import take_window
from mereo.data.images import Images, ImageSet
from mereo.data.load import Splits, load_size, load_split, load_splits
from mereo.data.multimnist import OverlaidPairs
from mereo.data.operation import Operation
from mereo.data.sources import DATASETS, DatasetInfo, data_root, dataset_info, list_datasets, open_dataset

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
    "data_root",
    "dataset_info",
    "list_datasets",
    "load_size",
    "load_split",
    "load_splits",
    "open_dataset",
    "take_window",
]
