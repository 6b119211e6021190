"""CIFAR-10: small colour photographs of animals and vehicles."""

from pathlib import Path
from typing import TYPE_CHECKING

from mereo.data.registry import register_dataset

if TYPE_CHECKING:
    from mereo.data.raw import RawDataset

FOLDER = "cifar-10-batches-py"
TRAIN, TEST, NAMES = tuple(f"data_batch_{number}" for number in range(1, 6)), ("test_batch",), "batches.meta"


def read(root: Path, download: bool) -> "RawDataset":
    """From the published batches, or the unpacked folder cifar10, or an archive cifar10*.zip, whichever exists."""
    from mereo.data.folder import finish_splits
    from mereo.data.layout import read_layout
    from mereo.data.published import download_published, obtain
    from mereo.data.raw import RawDataset

    folder = root / FOLDER
    unpacked = [root / "cifar10", *sorted(root.glob("cifar10*.zip"))]
    present = [path for path in unpacked if path.is_file() or (path / "train").is_dir()]
    if present and not folder.is_dir():
        dataset = finish_splits(present[0], read_layout(present[0]))
        return RawDataset(dataset.splits, dataset.class_names, 3)
    return obtain(
        lambda: _read_batches(folder),
        lambda: download_published("CIFAR10", root),
        "cifar10",
        all((folder / name).exists() for name in (*TRAIN, *TEST, NAMES)),
        f"the folder {FOLDER}, the folder cifar10 of train/<class>/* and test/<class>/*, or cifar10*.zip",
        root,
        download,
    )


def _read_batches(folder: Path) -> "RawDataset":
    import numpy as np

    from mereo.data.published import array_split
    from mereo.data.raw import RawDataset
    from mereo.data.unpickle import load_arrays

    splits = {}
    for split, names in (("train", TRAIN), ("test", TEST)):
        batches = [load_arrays(folder / name) for name in names]
        pixels = np.concatenate([np.asarray(batch["data"], dtype=np.uint8) for batch in batches])
        labels = [label for batch in batches for label in batch["labels"]]
        splits[split] = array_split(pixels.reshape(-1, 3, 32, 32), labels)
    return RawDataset(splits, tuple(map(str, load_arrays(folder / NAMES)["label_names"])), 3)


register_dataset(
    "cifar10",
    summary="ten kinds of animals and vehicles, in colour",
    source="Krizhevsky, Learning multiple layers of features from tiny images, 2009",
    num_classes=10,
    in_chans=3,
    size=(32, 32),
    splits={"train": 50000, "test": 10000},
    read=read,
    files=(FOLDER, "cifar10/train", "cifar10*.zip"),
)
