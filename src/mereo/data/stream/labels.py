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
from mereo.data.layout_options import LayoutOptions
from mereo.data.mask_folder import listed_names, mask_classes
from mereo.data.raw import RawDataset, RawSplit
from mereo.data.set_aside import with_test
from mereo.data.targets import TASKS, Target, Targets, find_targets, is_number, split_targets
from mereo.errors import UsageError

Labels = npt.NDArray[Any]
"""int64 or str (n,); or str (n, columns), the cells of several columns."""
LISTED = "|"
"""Separates the entries of a list in a cell."""
LONGEST_LABEL = 256
"""Characters: an array of texts takes as much memory for each of them as for the longest."""


class Part(NamedTuple):
    """One split as positions in its store, and in the store of its masks.

    Attributes:
        columns: the names of the columns of the labels.
        listed: whether a label is a list of labels.

    Shapes: numbers int64 (n,), labels int64 or str (n,), or str (n, columns).
    """

    store: Store
    numbers: Tensor
    labels: Labels
    masks: Store | None = None
    columns: tuple[str, ...] = ()
    listed: bool = False


class TargetRow(NamedTuple):
    """An image with several labels or numbers: its split, its place in the part, and its target."""

    split: str
    place: int
    target: Target | None


def wants_masks(options: LayoutOptions) -> bool:
    """Whether masks are read where there are some, rather than labels."""
    return not options.label_column and options.stated_task in (None, "segmentation")


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


def _find_targets(parts: Mapping[str, Part], data: str, options: LayoutOptions) -> Targets | None:
    """What the labels hold, if these are several labels of an image, or numbers."""
    columns, task = _first(parts).columns, options.stated_task
    forms = {(part.columns, part.listed) for part in parts.values()}
    if len(forms) > 1:
        raise UsageError(f"data is {data!r}, whose splits have labels of different forms or columns; use the same.")
    if any(listed for _, listed in forms):
        if task not in (None, "multilabel"):
            raise UsageError(
                f"data is {data!r}, with a list of labels for each image in {columns[0]!r}, and task is {task!r}; give"
                " --task multilabel."
            )
        return Targets("multi_hot", columns, LISTED)
    arrays = [part.labels for part in parts.values()]
    texts = [array for array in arrays if array.dtype.kind == "U"]
    if len(columns) == 1 and task not in TASKS and not any(map(_is_several, texts)):
        return None
    cells = [
        (row, dict(zip(columns, map(str, labels), strict=True)))
        for row, labels in enumerate(labels for array in arrays for labels in array.reshape(len(array), -1).tolist())
    ]
    found = {"path": "", "split": "", "mask": "", "label": columns[0] if len(columns) == 1 else ""}
    return find_targets(Path(data), columns, cells, found, options._replace(label_column=columns))


def _is_several(labels: Labels) -> bool:
    """Whether some texts may hold several labels, or are numbers that are not whole."""
    return any(
        ";" in label or LISTED in label or (is_number(label) and not float(label).is_integer())
        for label in np.unique(labels).tolist()
    )


def _dataset(splits: Mapping[str, Source], names: tuple[str, ...], data: str, *, evaluation: bool) -> RawDataset:
    ready: dict[str, RawSplit] = {**splits} if evaluation else with_test(splits, data)
    return RawDataset(ready, names, sniff(_first(splits))[0])


def _check_trained(parts: Mapping[str, Part], data: str, *, evaluation: bool) -> None:
    if "train" not in parts and not (evaluation and parts):
        raise UsageError(f"data is {data!r}, which has {', '.join(parts) or 'nothing'} but no training images.")


def _make_of_targets(
    parts: Mapping[str, Part], targets: Targets, data: str, options: LayoutOptions, *, evaluation: bool
) -> RawDataset:
    """A dataset whose images have several labels or numbers each; an image without a number is left out."""
    rows = [
        TargetRow(split, place, targets.read(dict(zip(part.columns, cells, strict=True)), part.store.name(place)))
        for split, part in parts.items()
        for place, cells in enumerate(part.labels.reshape(len(part.labels), -1).astype(np.str_).tolist())
    ]
    found = split_targets(rows, Path(data), targets, options, evaluation=evaluation)
    splits = {}
    for split, kept in found.rows.items():
        numbers = parts[split].numbers[torch.tensor([row.place for row in kept], dtype=torch.int64)]
        splits[split] = Source(parts[split].store, numbers, torch.zeros_like(numbers))
        splits[split].fields = {targets.field: found.fields[split]}
    return _dataset(splits, found.names, data, evaluation=evaluation)


def make_masked(parts: Mapping[str, Part], listed: Path, data: str, *, evaluation: bool = False) -> RawDataset:
    """A dataset of the parts, whose images have masks; their labels are not read.

    Args:
        parts: "train", and maybe "validation" and "test".
        listed: the file of the names of the classes, if there is one.
        data, evaluation: as in `make_dataset`.
    """
    _check_trained(parts, data, evaluation=evaluation)
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
    return _dataset(splits, names, data, evaluation=evaluation)


def make_dataset(
    parts: Mapping[str, Part],
    names: Sequence[str] | None,
    data: str,
    *,
    evaluation: bool = False,
    options: LayoutOptions | None = None,
) -> RawDataset:
    """A dataset of the parts: without test images, a part of the training images is set aside for testing.

    Labels are classes, unless they are lists, have separators, or are numbers that are not whole: then an image has
    several labels or numbers, as in tables of files.

    Args:
        parts: "train", and maybe "validation" and "test".
        names: of the classes, if the source has them.
        data: as given by the user, for messages.
        evaluation: whether it is for a trained network, which needs neither training images nor two classes; nothing
            is set aside.
        options: what the user states of the labels.
    """
    options = options or LayoutOptions()
    if (targets := _find_targets(parts, data, options)) is not None:
        _check_trained(parts, data, evaluation=evaluation)
        return _make_of_targets(parts, targets, data, options, evaluation=evaluation)
    if len(columns := _first(parts).columns) > 1:
        raise UsageError(f"label_column is {' '.join(columns)}; give one column for classes, or --task multilabel.")
    for part in parts.values():
        if part.labels.dtype.kind == "U" and len(empty := np.flatnonzero(part.labels == "")):
            where = part.store.name(int(part.numbers[empty[0]]))
            raise UsageError(f"data is {data!r}, and {where} is without a label; take it out, or add one.")
    # Published test splits often come without labels, written as -1.
    parts = {
        split: part
        for split, part in parts.items()
        if split == "train" or part.labels.dtype.kind == "U" or not (part.labels == -1).all()
    }
    _check_trained(parts, data, evaluation=evaluation)
    least = 1 if evaluation else 2
    if names is not None and len(names) < least:
        raise UsageError(f"data is {data!r}, with {len(names)} class names; a classifier needs at least two.")
    labels, classes = _to_classes(parts, names, data)
    if len(classes) < least:
        raise UsageError(f"data is {data!r}, with one class only, {classes[0]!r}; a classifier needs at least two.")
    splits = {split: Source(part.store, part.numbers, labels[split]) for split, part in parts.items()}
    return _dataset(splits, tuple(classes), data, evaluation=evaluation)
