"""Tables of images: a .csv file with the columns path, label or mask, and optionally split."""

import csv
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch

from mereo.data.files import FileSplit
from mereo.data.image_ids import SUFFIXES, image_files
from mereo.data.mask_folder import CLASS_FILE, class_names_of, mask_split
from mereo.data.names import SPLITS
from mereo.data.regular import open_regular
from mereo.data.trees import Tree
from mereo.errors import MereoError, UsageError

_COLUMNS = {
    "path": (
        "path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img", "image_id",
        "id",
    ),
    "label": ("label", "class", "target", "category", "class_name", "label_name"),
    "mask": ("mask", "mask_path", "mask_file", "segmentation", "annotation"),
    "split": ("split", "set", "subset", "fold"),
}  # fmt: skip
"""Usual names of each column, in any case."""
_LOOKED_FOR = 1000
"""Images of a table of which it is checked at once whether they exist."""
_DELIMITERS = ",;\t"


class TableTree(Tree):
    """The files that a table lists; their paths are absolute, or relative to the folder of the table."""

    def __init__(self, path: Path, files: list[str]) -> None:
        self.path, self.files, self.folders = path, files, []

    def open(self, file: str) -> BinaryIO:
        return open_regular(self.path.parent / file)


def _columns(path: Path, names: Sequence[str]) -> dict[str, str]:
    """The column of the path, the label or the mask, and maybe the split, by their usual names."""
    plain = {name.strip().lower(): name for name in reversed(names)}
    columns = {
        what: next((plain[usual] for usual in usuals if usual in plain), None) for what, usuals in _COLUMNS.items()
    }
    needed = ("path",) if columns["mask"] is not None else ("path", "label")
    missing = next((what for what in needed if columns[what] is None), None)
    if missing is not None:
        shown = ", ".join(map(repr, names)) or "none"
        raise UsageError(
            f"{path} has no column {missing!r} (its columns: {shown[:200]}); the first line must name path, label or"
            f" mask, and optionally split. A column of {missing}s may be called {', '.join(_COLUMNS[missing][1:])}."
        )
    return {what: name for what, name in columns.items() if name is not None}


class _Row(NamedTuple):
    """A line of a table; of label and mask one may be empty."""

    split: str
    image: str
    label: str
    mask: str


def _rows(path: Path) -> list[_Row]:
    """Every line; a name without a suffix is replaced by the path of its file."""
    rows = []
    try:
        # A table has one line per sample, so it is read at once.
        with open_regular(path) as file:
            lines = file.read().decode("utf-8-sig").splitlines(keepends=True)
        first = lines[0] if lines else ""
        reader = csv.DictReader(lines, strict=True, delimiter=max(_DELIMITERS, key=first.count))
        columns = _columns(path, reader.fieldnames or ())
        wanted = "mask" if "mask" in columns else "label"
        for row in reader:
            image, label, mask = (row.get(columns.get(what, "")) or "" for what in ("path", "label", "mask"))
            split = row.get(columns.get("split", "")) or "train"
            if split.strip().lower() not in SPLITS:
                raise UsageError(
                    f"{path}, line {reader.line_num}: split is {split[:80]!r}; it must be train, val or test."
                )
            if not image or not row[columns[wanted]] or "\0" in image + mask or None in row:
                raise UsageError(
                    f"{path}, line {reader.line_num}: it must have one path, one {wanted} and optionally a split."
                )
            rows.append(_Row(SPLITS[split.strip().lower()], image, label, mask))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise MereoError(f"the table {path} cannot be read ({error}); it must be a .csv file in UTF-8.") from error
    files = image_files(path, [row.image for row in rows])
    return [row._replace(image=file) for row, file in zip(rows, files, strict=True)]


def _sorted_classes(labels: set[str]) -> tuple[str, ...]:
    """Sorted by value if all are whole numbers, else by name."""
    if all(label.isascii() and label.isdigit() and len(label) < 20 for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))


def table_images(path: Path) -> dict[Path, str]:
    """The images of a table with their labels, in order; UsageError if none of them exists."""
    rows = _rows(path)
    _check_there(path, [row.image for row in rows])
    return {path.parent / row.image: row.label for row in rows}


def _check_there(path: Path, files: Sequence[str]) -> None:
    """UsageError for a table whose images do not exist: of a long one, some are looked for, evenly spread.

    Images that only some rows lack are reported when they are read.
    """
    looked_for = files[:: max(len(files) // _LOOKED_FOR, 1)]
    if looked_for and not any((path.parent / file).exists() for file in looked_for):
        what = "none of its images exists" if len(looked_for) == len(files) else "none of those looked for exists"
        other = "" if files[0].lower().endswith(SUFFIXES) else ", names without a suffix also to a folder in it"
        raise UsageError(
            f"{path} lists {len(files):,} images, and {what}, such as {files[0]!r}; paths are relative to the folder of"
            f" the table, {str(path.parent.resolve())!r}{other}."
        )


def read_table(
    path: Path, *, evaluation: bool = False, unseen: bool = False
) -> tuple[dict[str, FileSplit], tuple[str, ...]]:
    """The splits that a table lists, and the class names in the order of their numbers.

    Args:
        path: of the table.
        evaluation: whether the images are for a trained network, which needs neither training images nor two classes.
        unseen: whether other splits may have classes that the training images do not have; they come last.
    """
    rows = _rows(path)
    tree = TableTree(path, [row.image for row in rows])
    if rows and rows[0].mask:
        return _masked(path, rows, tree)
    train = not evaluation or any(row.split == "train" for row in rows)
    first = "train" if train else rows[0].split if rows else ""
    names = _sorted_classes({row.label for row in rows if row.split == first})
    if len(names) < (1 if evaluation else 2):
        classes = f"one class only, {names[0]!r}" if names else "no training images"
        raise UsageError(f"{path} has {classes}; a classifier needs training images of at least two classes.")
    if unseen:
        names += _sorted_classes({row.label for row in rows} - set(names))
    numbers = {name: number for number, name in enumerate(names)}
    foreign = next((row.label for row in rows if row.label not in numbers), None)
    if foreign is not None:
        raise UsageError(f"{path} has the class {foreign!r}, which the training images do not have.")
    _check_there(path, tree.files)
    splits = {}
    for wanted in dict.fromkeys(row.split for row in rows):
        part = [(row.image, numbers[row.label]) for row in rows if row.split == wanted]
        labels = torch.tensor([number for _, number in part], dtype=torch.int64)
        splits[wanted] = FileSplit(tree, [image for image, _ in part], labels)
    return splits, names


def _masked(path: Path, rows: Sequence[_Row], tree: TableTree) -> tuple[dict[str, FileSplit], tuple[str, ...]]:
    """The splits of a table of images and masks; its labels, where it has some, are not read."""
    _check_there(path, tree.files)
    pairs: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        pairs.setdefault(row.split, []).append((row.image, row.mask))
    first = pairs.get("train") or next(iter(pairs.values()))
    names = class_names_of([partial(tree.open, mask) for _, mask in first], path.parent / CLASS_FILE, path)
    return {split: mask_split(tree, each, len(names)) for split, each in pairs.items()}, names
