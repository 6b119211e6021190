"""Images in memory as a data set: a pair of images and labels, with its classes by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mereo.api.images import labelled, masked, pair_of, stored_images
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


class Measured(NamedTuple):
    """Several labels or numbers of each image in memory.

    Attributes:
        images: uint8 (n, channels, height, width).
        field: of a batch, "multi_hot" or "values".
        values: (n, columns).
        names: of the columns.
    """

    images: Tensor
    field: str
    values: Tensor
    names: tuple[str, ...]


def measured(data: Any) -> Measured | None:
    """Images with several labels, 0 and 1 in (n, labels), or with numbers, (n,) or (n, columns); None for classes.

    The columns of a data frame have names, others are numbered. Rows of a single 1 each are one class an image.
    """
    images, given = pair_of(data)
    try:
        values = np.asarray(given.cpu() if isinstance(given, Tensor) else given)
    except ValueError:  # rows of different lengths
        return None
    if values.ndim not in (1, 2) or values.dtype.kind not in "biuf" or not values.size:
        return None
    bits, one = set(np.unique(values).tolist()) <= {0, 1}, values.ndim == 1
    if one and (values.dtype.kind != "f" or bool(np.all(values == np.round(values)))):
        return None
    if bits and bool((values.sum(1) == 1).all()):
        return None
    if not np.isfinite(values).all():
        count = int((~np.isfinite(values)).sum())
        raise UsageError(f"labels have {count:,} entries that are NaN or infinite; remove these images.")
    stacked = stored_images(images)
    table = values[:, None] if one else values
    if len(table) != len(stacked):
        raise UsageError(
            f"data has {len(stacked):,} images and {len(table):,} rows of labels; give one for each image."
        )
    if bool((table == table[0]).all(0).any() if not bits else (table == table[0]).all()):
        raise UsageError("labels are the same for all images, so there is nothing to learn; give others.")
    names = tuple(map(str, getattr(given, "columns", range(table.shape[1]))))
    kept = torch.from_numpy(table.astype(np.int8 if bits else np.float32))
    return Measured(stacked, "multi_hot" if bits else "values", kept, names)


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
        data: (images, labels), see `labelled`, (images, masks), see `masked`, or images with several labels or with
            numbers, see `measured`.
        validation_fraction: hold out this fraction to choose the epoch and set nothing aside: those images, or
            if it is 0 all of them, stand for the test images. None to divide as for a folder.
        seed: of the images that are held out.
    """
    field = "labels"
    if (pair := masked(data)) is not None:
        images, masks = pair
        field = "masks"
        names = tuple(map(str, range(int(masks.masked_fill(masks == VOID, 0).max()) + 1)))
        whole = ArraySplit(images, torch.zeros(len(images), dtype=torch.int64), fields={"masks": masks})
    elif (table := measured(data)) is not None:
        images, names, field = table.images, table.names, table.field
        whole = ArraySplit(images, torch.zeros(len(images), dtype=torch.int64), fields={field: table.values})
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

    what = {"multi_hot": "labels", "values": "numbers"}.get(field, "classes")
    return DatasetInfo(
        NAME, f"images in memory, {len(names)} {what}", "memory", len(names), images.shape[1],
        (images.shape[2], images.shape[3]), counts, fields=("images", field),
        read=read, opened=RawDataset(stated, names, images.shape[1]),
    )  # fmt: skip
