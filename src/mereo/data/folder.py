"""Folders of images: {train, val, test}/<class>/*, or just <class>/*; zip archives of that layout; tables of paths."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from mereo.data.files import FileSplit, sniff
from mereo.data.raw import RawDataset, RawSplit
from mereo.data.split import hold_out
from mereo.data.table import read_table
from mereo.data.trees import Tree, open_tree
from mereo.errors import UsageError

TEST_FRACTION, TEST_SEED = 0.2, 0
Layout = tuple[dict[str, FileSplit], tuple[str, ...]]
"""The splits that a folder itself has, and the class names."""
_FOLDERS = {"train": ("train",), "validation": ("val", "validation", "valid"), "test": ("test",)}
_LAYOUT = "it must hold train/<class>/<images>, and may hold val/ and test/ of the same form; or <class>/<images>"


def _split_folders(tree: Tree) -> dict[str, str]:
    """The folder of each split: those with a known name that contain folders."""
    parents = {folder.rpartition("/")[0] for folder in tree.folders}
    places = {}
    for split, names in _FOLDERS.items():
        present = [name for name in names if name in parents]
        if present:
            places[split] = present[0]
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


def _check_no_parent(tree: Tree) -> None:
    """UsageError for a folder whose subfolders are data sets of their own rather than classes."""
    datasets = sorted({folder.split("/")[0] for folder in tree.folders if folder.split("/")[1:2] == ["train"]})
    datasets = [name for name in datasets if f"{name}/train" in {folder.rpartition("/")[0] for folder in tree.folders}]
    if datasets:
        raise UsageError(
            f"data is {str(tree.path)!r}, whose folders are data sets rather than classes ({', '.join(datasets[:5])}:"
            f" each has a train folder); give one of them, such as {str(tree.path / datasets[0])!r}."
        )


def _named_classes(tree: Tree, place: str) -> tuple[str, ...]:
    """The classes of the training images, sorted by name; their position is their label."""
    classes = _classes(tree, place)
    where = tree.path / place
    if not any(classes.values()):
        raise UsageError(f"data is {str(tree.path)!r}, which has no images of any class: {_LAYOUT}.")
    empty = [name for name, files in sorted(classes.items()) if not files]
    if empty:
        raise UsageError(
            f"{where} has {len(empty)} empty class folders, such as {empty[0]!r}; add images or remove them."
        )
    if len(classes) < 2:
        raise UsageError(f"{where} has one class only, {next(iter(classes))!r}; a classifier needs at least two.")
    return tuple(sorted(classes))


def read_layout(path: Path) -> Layout:
    """The splits that the folder, archive or table itself has, and the class names. No image is opened."""
    if path.suffix.lower() == ".csv" and path.is_file():
        return read_table(path)
    tree = open_tree(path)
    places = _split_folders(tree)
    if not places:
        _check_no_parent(tree)
        places = {"train": ""}
    if "train" not in places:
        raise UsageError(
            f"data is {str(path)!r}, which has {', '.join(places.values())} but no train folder: {_LAYOUT}."
        )
    names = _named_classes(tree, places["train"])
    return {split: _split(tree, place, names) for split, place in places.items()}, names


def finish_splits(path: Path, layout: Layout, in_chans: int | None = None) -> RawDataset:
    """The splits for training: without a test split, validation is used for testing; without both, a fifth is set
    aside.

    That choice is stratified and always the same, independent of the seed of a run. Known channels are not determined
    again.
    """
    splits, names = layout
    channels = sniff(splits["train"].tree, splits["train"].files)[0] if in_chans is None else in_chans
    ready: dict[str, RawSplit] = dict(splits)
    if "test" not in splits and "validation" in splits:
        ready["test"] = ready.pop("validation")
    elif "test" not in splits:
        kept, held = hold_out(splits["train"].labels, TEST_FRACTION, TEST_SEED)
        if not len(held):
            raise UsageError(
                f"data is {str(path)!r}, with one image per class; a test split cannot be taken from that."
            )
        ready |= {"train": splits["train"].take(kept), "test": splits["train"].take(held)}
        warnings.warn(
            f"{path} has no test split: {len(held)} of its {len(splits['train'])} images, the same in every run, "
            "were set aside as one.",
            UserWarning,
            stacklevel=4,
        )
    return RawDataset(ready, names, channels)


def read_folder(path: Path) -> RawDataset:
    """The splits for training of the images at a path."""
    return finish_splits(path, read_layout(path))
