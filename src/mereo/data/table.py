"""Tables of images: a .csv file with the columns path, label and optionally split."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import torch

from mereo.data.files import FileSplit
from mereo.data.image_ids import SUFFIXES, image_files
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
    "split": ("split", "set", "subset", "fold"),
}  # fmt: skip
"""Names of the columns, by what they hold, in any case."""
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
    """The column of the path, the label and maybe the split, by their usual names."""
    plain = {name.strip().lower(): name for name in reversed(names)}
    columns = {
        what: next((plain[usual] for usual in usuals if usual in plain), None) for what, usuals in _COLUMNS.items()
    }
    missing = next((what for what in ("path", "label") if columns[what] is None), None)
    if missing is not None:
        shown = ", ".join(map(repr, names)) or "none"
        raise UsageError(
            f"{path} has no column {missing!r} (its columns: {shown[:200]}); the first line must name path, label and"
            f" optionally split. A column of {missing}s may also be called {', '.join(_COLUMNS[missing][1:])}."
        )
    return {what: name for what, name in columns.items() if name is not None}


def _rows(path: Path) -> list[tuple[str, str, str]]:
    """(split, path, label) of every line, where the path of a name without a suffix is that of its file."""
    rows = []
    try:
        # A table has one line per sample, so it is read at once.
        with open_regular(path) as file:
            lines = file.read().decode("utf-8-sig").splitlines(keepends=True)
        first = lines[0] if lines else ""
        reader = csv.DictReader(lines, strict=True, delimiter=max(_DELIMITERS, key=first.count))
        columns = _columns(path, reader.fieldnames or ())
        for row in reader:
            image, label = row[columns["path"]], row[columns["label"]]
            split = row.get(columns.get("split", "")) or "train"
            if split.strip().lower() not in SPLITS:
                raise UsageError(
                    f"{path}, line {reader.line_num}: split is {split[:80]!r}; it must be train, val or test."
                )
            if not image or not label or "\0" in image or None in row:
                raise UsageError(
                    f"{path}, line {reader.line_num}: it must have one path, one label and optionally a split."
                )
            rows.append((SPLITS[split.strip().lower()], image, label))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise MereoError(f"the table {path} cannot be read ({error}); it must be a .csv file in UTF-8.") from error
    files = image_files(path, [image for _, image, _ in rows])
    return [(split, file, label) for (split, _, label), file in zip(rows, files, strict=True)]


def _sorted_classes(labels: set[str]) -> tuple[str, ...]:
    """Sorted by value if all are whole numbers, else by name."""
    if all(label.isascii() and label.isdigit() and len(label) < 20 for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))


def table_images(path: Path) -> dict[Path, str]:
    """The images of a table with their labels, in order; UsageError if none of them exists."""
    rows = _rows(path)
    _check_there(path, [image for _, image, _ in rows])
    return {path.parent / image: label for _, image, label in rows}


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


def read_table(path: Path, *, evaluation: bool = False) -> tuple[dict[str, FileSplit], tuple[str, ...]]:
    """The splits that a table lists, and the class names in the order of their numbers.

    Args:
        path: of the table.
        evaluation: whether the images are for a trained network, which needs neither training images nor two classes.
    """
    rows = _rows(path)
    first = "train" if not evaluation or any(split == "train" for split, _, _ in rows) else rows[0][0] if rows else ""
    names = _sorted_classes({label for split, _, label in rows if split == first})
    if len(names) < (1 if evaluation else 2):
        classes = f"one class only, {names[0]!r}" if names else "no training images"
        raise UsageError(f"{path} has {classes}; a classifier needs training images of at least two classes.")
    numbers = {name: number for number, name in enumerate(names)}
    foreign = next((label for _, _, label in rows if label not in numbers), None)
    if foreign is not None:
        raise UsageError(f"{path} has the class {foreign!r}, which the training images do not have.")
    tree = TableTree(path, [image for _, image, _ in rows])
    _check_there(path, tree.files)
    splits = {}
    for wanted in dict.fromkeys(split for split, _, _ in rows):
        part = [(image, numbers[label]) for split, image, label in rows if split == wanted]
        labels = torch.tensor([number for _, number in part], dtype=torch.int64)
        splits[wanted] = FileSplit(tree, [image for image, _ in part], labels)
    return splits, names
