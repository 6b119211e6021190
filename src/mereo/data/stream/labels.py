"""Maps labels of files, numbers or names, to classes, and parts of a data set to the splits for training."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mereo.data.encoded import Source, Store
from mereo.data.files import sniff
from mereo.data.mask_folder import listed_names, mask_classes
from mereo.data.raw import RawDataset, RawSplit
from mereo.data.set_aside import with_test
from mereo.errors import UsageError

Labels = npt.NDArray[Any]
"""int64 or str (n,)."""
LONGEST_LABEL = 256
"""Characters: an array of texts takes as much memory for each of them as for the longest."""


class Part(NamedTuple):
    """One split as positions in its store, and in the store of its masks.

    Shapes: numbers int64 (n,), labels int64 or str (n,).
    """

    store: Store
    numbers: Tensor
    labels: Labels
    masks: Store | None = None


def join_labels(labels: Sequence[Labels]) -> Labels:
    """One array of the labels of several files; numbers become text if another file has text."""
    if any(part.dtype.kind == "U" for part in labels):
        return np.concatenate([part.astype(np.str_) for part in labels])
    return np.concatenate(labels)


def _to_classes(
    parts: Mapping[str, Part], names: Sequence[str] | None, data: str
) -> tuple[dict[str, Tensor], list[str]]:
    """Labels of every split as positions in the class names, which are sorted if not given."""
    lacking = "training images" if names is None else "class names"
    numeric = all(part.labels.dtype.kind == "i" for part in parts.values())
    labels = {split: part.labels if numeric else part.labels.astype(np.str_) for split, part in parts.items()}
    if names is None:
        kinds: Labels = np.unique(_first(labels))
        names = [str(kind) for kind in kinds]
    else:
        kinds = np.arange(len(names)) if numeric else np.array(names, dtype=np.str_)
    order = np.argsort(kinds, kind="stable")
    places = {}
    for split, values in labels.items():
        place = order[np.searchsorted(kinds, values, sorter=order).clip(max=len(kinds) - 1)]
        strange = np.flatnonzero(kinds[place] != values)
        if len(strange):
            where = parts[split].store.name(int(parts[split].numbers[strange[0]]))
            raise UsageError(f"data is {data!r}; {where} has the label {values[strange[0]]}, which the {lacking} lack.")
        places[split] = torch.from_numpy(place.astype(np.int64))
    return places, list(names)


def _first(parts: Mapping[str, Any]) -> Any:
    """The part that names the classes: the training images if there are some."""
    return parts["train"] if "train" in parts else next(iter(parts.values()))


def make_masked(parts: Mapping[str, Part], listed: Path, data: str, *, evaluation: bool = False) -> RawDataset:
    """A dataset of the parts, whose images have masks; their labels are not read.

    Args:
        parts: "train", and maybe "validation" and "test".
        listed: the file of the names of the classes, if there is one.
        data, evaluation: as in `make_dataset`.
    """
    if "train" not in parts and not evaluation:
        raise UsageError(f"data is {data!r}, which has {', '.join(parts)} but no training images.")
    without = next((split for split, part in parts.items() if part.masks is None), None)
    if without is not None:
        raise UsageError(f"data is {data!r}, whose {without} images have no masks, and others have; add them.")
    first = _first(parts)
    masks = [partial(first.masks.open, number) for number in first.numbers.tolist()]
    names, colours = mask_classes(masks, listed_names(listed), None, data)
    splits = {
        split: Source(part.store, part.numbers, torch.zeros_like(part.numbers), part.masks, len(names), colours)
        for split, part in parts.items()
    }
    ready: dict[str, RawSplit] = {**splits} if evaluation else with_test(splits, data)
    return RawDataset(ready, names, sniff(_first(splits))[0])


def make_dataset(
    parts: Mapping[str, Part], names: Sequence[str] | None, data: str, *, evaluation: bool = False
) -> RawDataset:
    """A dataset of the parts: without test images, a part of the training images is set aside for testing.

    Args:
        parts: "train", and maybe "validation" and "test".
        names: of the classes, if the source has them.
        data: as given by the user, for messages.
        evaluation: whether it is for a trained network, which needs neither training images nor two classes; nothing
            is set aside.
    """
    # Published test splits often come without labels, written as -1.
    parts = {
        split: part
        for split, part in parts.items()
        if split == "train" or part.labels.dtype.kind == "U" or not (part.labels == -1).all()
    }
    if "train" not in parts and not (evaluation and parts):
        raise UsageError(f"data is {data!r}, which has {', '.join(parts) or 'nothing'} but no training images.")
    least = 1 if evaluation else 2
    if names is not None and len(names) < least:
        raise UsageError(f"data is {data!r}, with {len(names)} class names; a classifier needs at least two.")
    labels, classes = _to_classes(parts, names, data)
    if len(classes) < least:
        raise UsageError(f"data is {data!r}, with one class only, {classes[0]!r}; a classifier needs at least two.")
    splits = {split: Source(part.store, part.numbers, labels[split]) for split, part in parts.items()}
    ready: dict[str, RawSplit] = {**splits} if evaluation else with_test(splits, data)
    return RawDataset(ready, tuple(classes), sniff(_first(splits))[0])
