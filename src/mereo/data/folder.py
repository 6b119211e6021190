"""Folders of images: {train, val, test}/<class>/*, or just <class>/*, or images/ and masks/; zip archives of these
layouts; tables of paths."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import torch

from mereo.data.files import FileSplit, sniff
from mereo.data.mask_folder import read_mask_layout
from mereo.data.names import IMAGE_SUFFIXES, SPLITS, is_table
from mereo.data.raw import RawDataset
from mereo.data.set_aside import with_test
from mereo.data.sets_inside import check_classes
from mereo.data.table import read_table
from mereo.data.trees import Tree, open_tree
from mereo.errors import UsageError

Layout = tuple[dict[str, FileSplit], tuple[str, ...]]
"""The splits that a folder itself has, and the class names."""
_LAYOUT = "it must hold train/<class>/<images>, and may hold val/ and test/ of the same form; or <class>/<images>"


def _split_folders(tree: Tree) -> dict[str, str]:
    """The folder of each split: those with a known name, in any capitals, that contain folders.

    UsageError for two folders of one split, such as val and valid, of which one would be left out.
    """
    parents = {folder.rpartition("/")[0] for folder in tree.folders}
    places: dict[str, str] = {}
    for split in ("train", "validation", "test"):
        named = sorted(name for name in parents if SPLITS.get(name.lower()) == split)
        if len(named) > 1:
            raise UsageError(
                f"data is {str(tree.path)!r}, whose folders {' and '.join(named)} are both the {split} split; join"
                " them, or rename one."
            )
        if named:
            places[split] = named[0]
    return places


def _classes(tree: Tree, place: str) -> dict[str, list[str]]:
    """The files of each class folder directly under `place`, at any depth below it."""
    prefix = f"{place}/" if place else ""
    inside = [folder.removeprefix(prefix) for folder in tree.folders if folder.startswith(prefix)]
    classes: dict[str, list[str]] = {name: [] for name in inside if name and "/" not in name}
    for file in tree.files:
        name, slash, _ = file.removeprefix(prefix).partition("/")
        if slash and file.startswith(prefix) and name in classes:
            classes[name].append(file)
    return classes


def _split(tree: Tree, place: str, names: Sequence[str]) -> FileSplit:
    classes = _classes(tree, place)
    unknown = sorted(set(classes) - set(names))
    if unknown:
        raise UsageError(f"{tree.path}/{place} has the class {unknown[0]!r}, which the training images do not have.")
    files = [file for name in names for file in classes.get(name, [])]
    if not files:
        raise UsageError(f"{tree.path}/{place} has no files; add some or remove it.")
    labels = [label for label, name in enumerate(names) for _ in classes.get(name, [])]
    return FileSplit(tree, files, torch.tensor(labels, dtype=torch.int64))


def _only_folder(tree: Tree) -> str:
    """The folder that holds everything, as in an archive of one folder: its path inside; empty for none."""
    place = ""
    while True:
        prefix = f"{place}/" if place else ""
        below = {f.removeprefix(prefix).partition("/")[0] for f in tree.folders if f.startswith(prefix)}
        images = [f for f in tree.files if f.startswith(prefix) and "/" not in f.removeprefix(prefix)]
        if len(below) != 1 or any(Path(f).suffix.lower() in IMAGE_SUFFIXES for f in images):
            return place
        (only,) = below
        if only.lower() in SPLITS:
            return place
        if not any(f.startswith(f"{prefix}{only}/") for f in tree.folders):
            return place  # one class, whose images it holds
        place = f"{prefix}{only}"


class _Below(Tree):
    """The part of a tree below one of its folders."""

    def __init__(self, tree: Tree, place: str) -> None:
        prefix = f"{place}/"
        self.path, self._tree, self._prefix = tree.path / place, tree, prefix
        self.files = [file.removeprefix(prefix) for file in tree.files if file.startswith(prefix)]
        self.folders = [folder.removeprefix(prefix) for folder in tree.folders if folder.startswith(prefix)]

    def open(self, file: str) -> BinaryIO:
        return self._tree.open(self._prefix + file)


def _named_classes(tree: Tree, place: str, least: int) -> tuple[str, ...]:
    """The classes of the images, sorted by name; their position is their label."""
    classes = _classes(tree, place)
    where = tree.path / place
    if not any(classes.values()):
        loose = [file for file in tree.files if "/" not in file and file.lower().endswith(IMAGE_SUFFIXES)]
        if loose:
            raise UsageError(
                f"data is {str(tree.path)!r}, whose {len(loose)} images, such as {loose[0]!r}, are in no folder of a"
                " class; put them into <class>/<images>, or list them in a .csv with path and label."
            )
        raise UsageError(f"data is {str(tree.path)!r}, which has no images of any class: {_LAYOUT}.")
    empty = [name for name, files in sorted(classes.items()) if not files]
    if empty:
        raise UsageError(
            f"{where} has {len(empty)} empty class folders, such as {empty[0]!r}; add images or remove them."
        )
    if len(classes) < least:
        raise UsageError(f"{where} has one class only, {next(iter(classes))!r}; a classifier needs at least two.")
    names = tuple(sorted(classes))
    _warn_of_case(where, names)
    return names


def _warn_of_case(where: Path, names: Sequence[str]) -> None:
    """Warn of classes whose names differ only in capitals: usually they are one class."""
    first: dict[str, str] = {}
    for name in names:
        if (other := first.setdefault(name.casefold(), name)) != name:
            warnings.warn(
                f"{where} has the classes {other!r} and {name!r}, which differ only in capitals and are trained as two;"
                " if they are one, move their images into one folder.", UserWarning, stacklevel=2,
            )  # fmt: skip


def read_layout(path: Path, *, evaluation: bool = False, unseen: bool = False) -> Layout:
    """The splits that the folder, archive or table itself has, and the class names. No image is opened.

    Args:
        path: of the folder, archive or table.
        evaluation: whether the images are for a trained network, which needs neither training images nor two classes.
        unseen: whether other splits may have classes that the training images do not have; they come last.
    """
    if is_table(path):
        return read_table(path, evaluation=evaluation, unseen=unseen)
    tree = open_tree(path)
    only = _only_folder(tree)
    if only:
        tree = _Below(tree, only)
    if (masked := read_mask_layout(tree, evaluation=evaluation)) is not None:
        return masked
    places = _split_folders(tree)
    if not places:
        check_classes(tree)
        places = {"train": ""}
    if "train" not in places and not evaluation:
        raise UsageError(
            f"data is {str(path)!r}, which has {', '.join(places.values())} but no train folder: {_LAYOUT}."
        )
    first = "train" if "train" in places else next(iter(places))
    names = _named_classes(tree, places[first], 1 if evaluation else 2)
    if unseen:
        others = {name for place in places.values() for name, files in _classes(tree, place).items() if files}
        names += tuple(sorted(others - set(names)))
    return {split: _split(tree, place, names) for split, place in places.items()}, names


def finish_splits(path: Path, layout: Layout, in_chans: int | None = None) -> RawDataset:
    """The splits for training: without a test split, a part of the training images is set aside as one.

    That choice is stratified and always the same, independent of the seed of a run. Known channels are not determined
    again.
    """
    dataset = own_splits(layout, in_chans)
    return RawDataset(with_test(dataset.splits, path), dataset.class_names, dataset.in_chans)


def own_splits(layout: Layout, in_chans: int | None = None) -> RawDataset:
    """The splits that a folder itself has."""
    splits, names = layout
    first = next(iter(splits.values()))
    channels = sniff(first.tree, first.files)[0] if in_chans is None else in_chans
    return RawDataset(dict(splits), names, channels)


def read_folder(path: Path) -> RawDataset:
    """The splits for training of the images at a path."""
    return finish_splits(path, read_layout(path))
