"""The splits of images in folders of classes, as `mereo.data.layout` recognised them, and the splits for training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import torch

from mereo.data.encoded import FileSplit
from mereo.data.files import Layout, sniff
from mereo.data.raw import RawDataset
from mereo.data.set_aside import with_test
from mereo.data.spelling import joined
from mereo.data.trees import Tree
from mereo.errors import UsageError
from mereo.runtime.text import counted

Classes = Mapping[str, Sequence[str]]
"""The files of each class."""


class Below(Tree):
    """The part of a tree below one of its folders."""

    def __init__(self, tree: Tree, place: str) -> None:
        prefix = f"{place}/"
        self.path, self._tree, self._prefix = tree.path / place, tree, prefix
        self.files = [file.removeprefix(prefix) for file in tree.files if file.startswith(prefix)]
        self.folders = [folder.removeprefix(prefix) for folder in tree.folders if folder.startswith(prefix)]

    def open(self, file: str) -> BinaryIO:
        return self._tree.open(self._prefix + file)


def class_layout(tree: Tree, splits: Mapping[str, Classes], evidence: str, *, evaluation: bool, unseen: bool) -> Layout:
    """The splits of images whose classes are known by name; the classes are sorted.

    Args:
        tree: of the files.
        splits: the files of each class of each split.
        evidence: what they were recognised by.
        evaluation: whether the images are for a trained network, which needs neither training images nor two classes.
        unseen: whether other splits may have classes that the training images do not have; they come last.
    """
    if "train" not in splits and not evaluation:
        raise UsageError(
            f"data is {str(tree.path)!r}, which has {', '.join(splits)} but no train folder: it must hold"
            " train/<class>/<images>, and may hold val/ and test/ of the same form; or <class>/<images>."
        )
    first = splits["train" if "train" in splits else next(iter(splits))]
    empty = sorted(name for name, files in first.items() if not files)
    if empty and len(empty) < len(first):
        raise UsageError(
            f"{tree.path} has {counted(len(empty), 'class folder')} without images, such as {empty[0]!r}; add images or"
            " remove them."
        )
    sizes = {name: len(files) for part in splits.values() for name, files in part.items()}
    spelled = joined((name for name, count in sizes.items() for _ in range(max(count, 1))), tree.path)
    names = tuple(sorted({spelled[name] for name, files in first.items() if files}))
    if len(names) < (1 if evaluation else 2):
        only = f"one class only, {names[0]!r}; a classifier needs at least two" if names else "no images of any class"
        raise UsageError(f"data is {str(tree.path)!r}, which has {only}.")
    others = tuple(sorted({spelled[n] for part in splits.values() for n, files in part.items() if files} - {*names}))
    if unseen:
        names += others
    elif others:
        split = next(split for split, part in splits.items() if any(spelled[name] in others for name in part))
        remedy = "remove it" if len(others) < 2 else "if these are identities, give --task embedding"
        raise UsageError(
            f"{tree.path}, split {split}, has the class {others[0]!r}, which the training images do not have; {remedy}."
        )
    numbers = {name: number for number, name in enumerate(names)}
    ready = {}
    for split, part in splits.items():
        pairs = [(file, numbers[spelled[name]]) for name, files in sorted(part.items()) for file in files]
        if not pairs:
            raise UsageError(f"{tree.path}, split {split}, has no files; add some or remove it.")
        pairs.sort(key=lambda pair: pair[1])
        labels = torch.tensor([label for _, label in pairs], dtype=torch.int64)
        ready[split] = FileSplit(tree, [file for file, _ in pairs], labels)
    return Layout(ready, names, evidence)


def finish_splits(path: Path, layout: Layout, in_chans: int | None = None) -> RawDataset:
    """The splits for training: without a test split, a part of the training images is set aside as one.

    That choice is stratified and always the same, independent of the seed of a run. Known channels are not determined
    again.
    """
    dataset = own_splits(layout, in_chans)
    return RawDataset(with_test(dataset.splits, path), dataset.class_names, dataset.in_chans)


def own_splits(layout: Layout, in_chans: int | None = None) -> RawDataset:
    """The splits that a folder itself has."""
    first = next(iter(layout.splits.values()))
    channels = sniff(first)[0] if in_chans is None else in_chans
    return RawDataset(dict(layout.splits), layout.names, channels)
