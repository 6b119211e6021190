"""Images in memory as a data set: a pair of images and labels, with its classes by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mereo.api.images import labelled, masked
from mereo.data import DatasetInfo, ImageSet, load_size
from mereo.data.decode import VOID
from mereo.data.raw import ArraySplit, RawDataset, RawSplit, Request
from mereo.data.set_aside import with_test
from mereo.data.split import hold_out
from mereo.errors import UsageError, unknown
from mereo.models import VisionModel

NAME = "arrays"
"""The name of images in memory in configurations and results."""


def class_numbers(labels: Sequence[Any], names: Sequence[str], network: str = "the network") -> Tensor:
    """Labels as class numbers: found by name, or, if they are whole numbers, unchanged.

    Args:
        labels: names or numbers.
        names: of the classes, in order.
        network: the network with these classes, for the message.
    """
    places = {name: number for number, name in enumerate(names)}
    numbers = []
    for label in labels:
        if str(label) in places:
            numbers.append(places[str(label)])
        elif isinstance(label, int) and not isinstance(label, bool) and 0 <= label < len(names):
            numbers.append(label)
        else:
            raise unknown(f"class of {network}", label, names)
    return torch.tensor(numbers, dtype=torch.int64)


def image_set(images: Tensor, numbers: Tensor, names: Sequence[str], network: VisionModel) -> ImageSet:
    """Images in memory as a network is trained on them: its size and colours.

    Shapes: images uint8 (n, channels, height, width), numbers of classes int64 (n,).
    """
    channels, height, width = network.image_shape
    size = load_size((height, width), network.pretrained_cfg["crop_pct"])
    pixels = ArraySplit(images, numbers).read(Request(size, channels)).images
    return ImageSet(pixels, numbers, tuple(names))


def sorted_classes(labels: Sequence[Any]) -> list[Any]:
    """The classes of labels of any type, sorted; UsageError for fewer than two, and for labels that are no classes."""
    try:
        classes = np.unique(np.asarray(labels)).tolist() if labels else []
    except TypeError:
        classes = sorted(set(labels), key=str)
    if any(isinstance(each, float) and not each.is_integer() for each in classes):
        raise UsageError("labels have fractions; give classes: names or whole numbers.")
    if len(classes) < 2:
        raise UsageError(f"labels have {len(classes)} class{'es' if len(classes) != 1 else ''}; at least 2 are needed.")
    return classes


def array_dataset(data: Any, validation_fraction: float | None = None, seed: int = 0) -> DatasetInfo:
    """A data set from images and labels, or images and masks, in memory, as `make_plan` takes it.

    A fifth of the images is set aside for testing, as for a folder without test images.

    Args:
        data: (images, labels), see `labelled`, or (images, masks), see `masked`.
        validation_fraction: hold out this fraction to choose the epoch and set nothing aside: those images, or
            if it is 0 all of them, stand for the test images. None to divide as for a folder.
        seed: of the images that are held out.
    """
    if (pair := masked(data)) is not None:
        images, masks = pair
        names = tuple(map(str, range(int(masks.masked_fill(masks == VOID, 0).max()) + 1)))
        whole = ArraySplit(images, torch.zeros(len(images), dtype=torch.int64), fields={"masks": masks})
    else:
        images, labels = labelled(data)
        names = tuple(str(each) for each in sorted_classes(labels))
        if len(set(names)) < len(names):
            raise UsageError("labels have classes with the same name; give names or numbers, not both.")
        whole = ArraySplit(images, torch.tensor([names.index(str(label)) for label in labels]))
    stated: dict[str, RawSplit] = {"train": whole}
    if validation_fraction is not None:
        stated["test"] = whole
        kept, held = hold_out(whole.labels, validation_fraction, seed)
        if validation_fraction and len(held):
            stated = {"train": whole.take(kept), "test": whole.take(held), "validation": whole.take(held)}
    dataset = RawDataset(with_test(stated, NAME, warn=False), names, images.shape[1])
    counts = {name: len(split) for name, split in stated.items()}

    def read(root: Path, download: bool) -> RawDataset:
        return dataset

    return DatasetInfo(
        NAME, f"images in memory, {len(names)} classes", "memory", len(names), images.shape[1],
        (images.shape[2], images.shape[3]), counts, fields=("images", "labels" if pair is None else "masks"),
        read=read, opened=RawDataset(stated, names, images.shape[1]),
    )  # fmt: skip
