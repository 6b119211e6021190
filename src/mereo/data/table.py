"""Tables of images: .csv, .tsv, .json or .jsonl with a column of paths, one of labels or masks, or several of labels or
numbers, and maybe one of splits."""

import csv
import json
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from mereo.data.contents import counted_names
from mereo.data.encoded import FileSplit
from mereo.data.files import Layout
from mereo.data.image_ids import ImageFinder, is_image_path, share_found
from mereo.data.layout_options import LayoutOptions
from mereo.data.mask_folder import CLASS_FILE, listed_names, mask_classes, mask_split
from mereo.data.names import SPLITS, is_hidden, split_of, words_of
from mereo.data.regular import open_regular
from mereo.data.spelling import joined
from mereo.data.targets import ABOUT, Target, Targets, filled, find_targets, is_number, quantities_note, targets_layout
from mereo.data.trees import Tree
from mereo.errors import MereoError, UsageError
from mereo.runtime.text import counted

COLUMNS = {
    "path": (
        "path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "image_name", "img",
        "image_id", "id",
    ),
    "label": ("label", "class", "target", "category", "class_name", "label_name", "labels"),
    "mask": ("mask", "mask_path", "mask_file", "segmentation", "annotation"),
    "split": ("split", "set", "subset", "fold", "partition"),
}  # fmt: skip
"""Usual names of each column, in any case."""
BOXES = ({"xmin", "ymin", "xmax", "ymax"}, {"x1", "y1", "x2", "y2"})
"""Columns of a table of boxes."""
_LOOKED_FOR = 1000
"""Number of images of a table that are checked for existence at once."""
_MOST_LISTED = 500_000
"""Files below the folder of a table that are listed if its paths do not exist."""
_DELIMITERS = ",;\t"
_PIXEL_COLUMNS = 64
_REPEATED = 0.1
"""Share of images with different answers from which on a table is refused."""
_ENOUGH = 0.5
"""Share of the images of a table that must exist for a folder to be read by it."""


class TableTree(Tree):
    """The files that a table lists; their paths are absolute, or relative to the folder of the table."""

    def __init__(self, path: Path, files: list[str]) -> None:
        self.path, self.files, self.folders = path, files, []

    def open(self, file: str) -> BinaryIO:
        return open_regular(self.path.parent / file)


class Row(NamedTuple):
    """An image of a table; of label and mask one may be empty, and both for several labels or numbers, the target."""

    split: str
    image: str
    label: str
    mask: str
    target: Target | None = None


_Cells = list[tuple[int, dict[str, str]]]
"""The lines of a table by number, each with its cells by column."""


class Table:
    """A table, its columns recognised.

    Args:
        path: for messages, and for its suffix.
        content: of the file.
        options: which column has the labels.

    Attributes:
        label: the column of the labels; empty for masks.
        targets: what other columns hold in place of one label; None for a label or a mask.
        rows: one for each image, as written in the file.

    Raises:
        UsageError: for a table without paths, labels or masks, and for labels that no task trains on.
        MereoError: for a damaged file.
    """

    def __init__(self, path: Path, content: bytes, options: LayoutOptions) -> None:
        self.path = path
        try:
            text = content.decode("utf-8-sig")
            header, cells = _read_json(text) if path.suffix.lower().startswith(".json") else _read_csv(text)
        except (UnicodeDecodeError, csv.Error, ValueError, RecursionError) as error:
            raise MereoError(f"the table {path} cannot be read ({error}); it must be a table in UTF-8.") from error
        columns, self.targets = _columns(path, header, cells, options)
        one = "label" in columns or "mask" in columns or self.targets is not None
        hot = () if one else _one_hot(path, options.label_column or header, cells, columns)
        self.label = columns.get("label", "one of " + ", ".join(hot) if hot else "")
        wanted = "mask" if "mask" in columns else "label"
        self.rows: list[Row] = []
        for line, row in cells:
            image, label, mask = (row.get(columns.get(what, "")) or "" for what in ("path", "label", "mask"))
            label = next((name for name in hot if _is_one(row[name])), label)
            target = None if self.targets is None else self.targets.read(row, f"{path}, line {line}")
            split = row.get(columns.get("split", "")) or "train"
            if split.strip().lower() not in SPLITS:
                raise UsageError(f"{path}, line {line}: split is {split[:80]!r}; it must be train, val or test.")
            labelled = self.targets is not None or (mask or label).strip()
            if not image.strip() or not labelled or "\0" in image + mask or None in row:
                empty = sum(not (other.get(columns.get(wanted, "")) or "").strip() for _, other in cells)
                counted = (
                    f" {empty:,} of {len(cells):,} rows have an empty {wanted}: fill or remove them." if empty else ""
                )
                raise UsageError(
                    f"{path}, line {line}: it must have one path, one {wanted} and optionally a split.{counted}"
                )
            self.rows.append(Row(SPLITS[split.strip().lower()], image, label, mask if wanted == "mask" else "", target))


def _read_csv(text: str) -> tuple[list[str], _Cells]:
    # A table has one line per sample, so it is read at once.
    lines = text.splitlines(keepends=True)
    first = lines[0] if lines else ""
    reader = csv.DictReader(lines, strict=True, delimiter=max(_DELIMITERS, key=first.count))
    cells = [(reader.line_num, row) for row in reader]
    return list(reader.fieldnames or ()), cells


def _read_json(text: str) -> tuple[list[str], _Cells]:
    """Records, one a line or in a list; labels by name of the image; or images and annotations, as COCO writes them."""
    try:
        found: Any = json.loads(text)
    except ValueError:
        found = [json.loads(line) for line in text.splitlines() if line.strip()]
    if isinstance(found, dict) and isinstance(found.get("images"), list):
        if any("bbox" in each for each in found.get("annotations", ())):
            raise ValueError("it has boxes")
        names = {each["id"]: each.get("name", str(each["id"])) for each in found.get("categories", ())}
        files = {each["id"]: each["file_name"] for each in found["images"]}
        found = [
            {"path": files[each["image_id"]], "label": names.get(each["category_id"], str(each["category_id"]))}
            for each in found.get("annotations", ())
        ]
    elif isinstance(found, dict):
        found = [{"path": path, "label": label} for path, label in found.items()]
    if not isinstance(found, list) or not all(isinstance(record, dict) for record in found):
        raise ValueError("it has no records")
    header = list(dict.fromkeys(str(name) for record in found for name in record))
    return header, [
        (line, {str(name): _cell(value) for name, value in record.items()}) for line, record in enumerate(found, 1)
    ]


def _cell(value: Any) -> str:
    """A value of JSON as the cell of a table; the labels of a list are separated by |."""
    if isinstance(value, list) and all(isinstance(each, str | int) for each in value):
        return "|".join(map(str, value))
    return str(value) if isinstance(value, str | int | float) else ""


def _columns(
    path: Path, header: Sequence[str], cells: _Cells, options: LayoutOptions
) -> tuple[dict[str, str], Targets | None]:
    """The columns of paths, labels or masks, and maybe splits: by their usual names, or the only ones that fit; and
    what the columns of several labels or of numbers hold."""
    plain, shown = {name.strip().lower(): name for name in reversed(header)}, ", ".join(map(repr, header)) or "none"
    found = {what: next((plain[each] for each in usual if each in plain), "") for what, usual in COLUMNS.items()}
    _check_kind(path, plain)
    if any(map(is_image_path, header)):
        raise UsageError(f"{path} begins with {shown[:100]}; its first line must name the columns, such as path,label.")
    if not found["path"]:
        full = [name for name in header if cells and all(is_image_path(row.get(name) or "") for _, row in cells)]
        found["path"] = full[0] if len(full) == 1 else ""
    split = found["split"]
    if split and split.strip().lower() != "split" and not all(_is_split(row.get(split) or "") for _, row in cells):
        found["split"] = ""
    if options.label_column:
        lacking = next((name for name in options.label_column if name not in header), None)
        if lacking is not None:
            raise UsageError(f"label_column is {lacking!r}, and the columns of {path} are {shown[:200]}.")
        one = options.label_column[0] if len(options.label_column) == 1 else ""
        found |= {"label": one, "mask": ""}
    twice = next((name for name in (*found.values(), *options.label_column) if name and header.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{path} has more than one column {twice!r}; rename or remove the others.")
    missing = None if found["path"] else "path"
    targets = find_targets(path, header, cells, found, options) if found["path"] else None
    if targets is not None or (found["path"] and len(options.label_column) > 1):
        return {what: name for what, name in found.items() if name and what in ("path", "split")}, targets
    if missing is None and not found["label"] and not found["mask"]:
        others = {
            name: filled(name, cells)
            for name in header
            if name not in found.values() and ABOUT.isdisjoint(words_of(name))
        }
        fitting = {name: values for name, values in others.items() if 2 <= len(values) <= max(len(cells) // 2, 2)}
        text = [n for n, values in fitting.items() if 2 * sum(map(is_number, values)) < len(values)]
        chosen = [*fitting] if len(fitting) == 1 else text if len(text) == 1 else []
        binary = [name for name, values in others.items() if values and set(values) <= {*_ZERO, *_ONE}]
        if chosen and len(binary) < 2:
            found["label"] = chosen[0]
        elif fitting and len(binary) < 2:
            each = ", ".join(f"{name!r} ({len(values):,} values)" for name, values in fitting.items())
            raise UsageError(
                f"{path} has no column 'label', and several that may be it: {each[:400]}; give one of them as"
                f" --label-column, such as --label-column {next(iter(text or fitting))}."
            )
        elif len(binary) < 2:
            missing = "label"
    if missing is not None:
        raise UsageError(
            f"{path} has no column {missing!r} (its columns: {shown[:200]}); the first line must name path, label or"
            f" mask, and optionally split. A column of {missing}s may be called {', '.join(COLUMNS[missing][1:])}"
            f"{', or be given as --label-column; numbers to predict need --task regression' * (missing == 'label')}."
        )
    return {what: name for what, name in found.items() if name}, None


def _check_kind(path: Path, plain: Mapping[str, str]) -> None:
    """UsageError for a table of boxes, and for one whose cells are pixels."""
    if any(names <= {*plain} for names in BOXES):
        raise UsageError(
            f"{path} is a table of boxes (its columns: {', '.join(plain)}), which are read from Pascal VOC XML,"
            " COCO JSON and YOLO text; convert it to one of them."
        )
    pixels = [name for name in plain if name.rstrip("0123456789").strip("_ ") in ("pixel", "pixels", "px")]
    if "pixels" in plain or len(pixels) >= _PIXEL_COLUMNS:
        raise UsageError(
            f"{path} has the pixels of images in its cells (column {pixels[0]!r}), which are not read; write them as"
            " image files into a folder for each class, or give arrays: mereo.train(data=(images, labels))."
        )


_ZERO, _ONE = ("0", "0.0"), ("1", "1.0")


def _is_one(cell: str | None) -> bool:
    return (cell or "").strip() in _ONE


def _is_split(cell: str) -> bool:
    return not cell or cell.strip().lower() in SPLITS


def _one_hot(path: Path, header: Sequence[str], cells: _Cells, columns: Mapping[str, str]) -> tuple[str, ...]:
    """Columns of 0 and 1 with one 1 in each row: the name of its column is the label."""
    names = [
        name
        for name in header
        if name not in columns.values() and {*filled(name, cells)} <= {*_ZERO, *_ONE} and filled(name, cells)
    ]
    several = next((line for line, row in cells if sum(_is_one(row.get(name)) for name in names) != 1), None)
    if several is not None:
        raise UsageError(
            f"{path} has columns of 0 and 1 ({', '.join(names)[:200]}), and line {several} has not exactly one 1; for"
            " several labels of an image give --task multilabel, else one column as --label-column."
        )
    return tuple(names)


def _sorted_classes(labels: set[str]) -> tuple[str, ...]:
    """Sorted by value if all are whole numbers, else by name."""
    if all(label.isascii() and label.isdigit() and len(label) < 20 for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))


def _images_near(folder: Path) -> list[str]:
    """The image files below a folder, and those without a suffix; links are not followed."""
    listed: list[str] = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not is_hidden(name)]
        inside = Path(place).relative_to(folder)
        listed += [
            str(inside / name)
            for name in names
            if not is_hidden(name) and (is_image_path(name) or not Path(name).suffix)
        ]
        if len(listed) > _MOST_LISTED:
            break
    return listed


def _open_table(path: Path, options: LayoutOptions) -> tuple[list[Row], Table]:
    """The rows of a table on disk; paths lead to files where these exist."""
    try:
        with open_regular(path) as file:
            content = file.read()
    except OSError as error:
        raise MereoError(f"the table {path} cannot be read ({error}); it must be a table in UTF-8.") from error
    table = Table(path, content, options)
    some = table.rows[:: max(len(table.rows) // _LOOKED_FOR, 1)]
    if all((path.parent / row.image).is_file() for row in some):
        return table.rows, table
    finder = ImageFinder(_images_near(path.parent), path)
    return [_found(row, finder) for row in table.rows], table


def _found(row: Row, finder: ImageFinder) -> Row:
    image = row.image if Path(row.image).is_absolute() and Path(row.image).exists() else finder.find(row.image)
    mask = finder.find(row.mask) if row.mask else None
    return row._replace(image=image or row.image, mask=mask or row.mask)


def table_images(path: Path) -> dict[Path, str]:
    """The images of a table with their labels, in order; UsageError if none of them exists."""
    rows, _ = _open_table(path, LayoutOptions())
    _check_there(path, [row.image for row in rows])
    return {path.parent / row.image: row.label for row in rows}


def _check_there(path: Path, files: Sequence[str]) -> None:
    """UsageError for a table whose images do not exist: for a long one, some are looked for, evenly spread.

    Images that only some rows lack are reported when they are read.
    """
    looked_for = files[:: max(len(files) // _LOOKED_FOR, 1)]
    if looked_for and not any((path.parent / file).exists() for file in looked_for):
        what = "none of its images exists" if len(looked_for) == len(files) else "none of those looked for exists"
        raise UsageError(
            f"{path} lists {len(files):,} images, and {what}, such as {files[0]!r}; paths are relative to the folder of"
            f" the table, {str(path.parent.resolve())!r}, or the names of files in its folders."
        )


def check_repeated(rows: Sequence[Row], where: Path) -> None:
    """Warn of images with different answers in several rows of a split; UsageError for many.

    A table with a row for each label, or for the mask of each object, would be trained as if its images had one each.
    """
    answers: dict[tuple[str, str], dict[Any, None]] = {}
    for row in rows:
        answer = row.target if row.target is not None else row.mask or row.label.strip()
        answers.setdefault((row.split, row.image), {})[answer.casefold() if isinstance(answer, str) else answer] = None
    several = [place for place, found in answers.items() if len(found) > 1]
    if several:
        one, other = [*answers[several[0]]][:2]
        what = f"{where} has {counted(len(several), 'image')} in rows with different answers, such as"
        line = f"{what} {several[0][1]!r} with {str(one)[:80]!r} and {str(other)[:80]!r}"
        if len(several) >= _REPEATED * len(answers):
            raise UsageError(
                f"{line}; keep a row for each image: several labels are one cell, a;b, and masks one file."
            )
        warnings.warn(f"{line}; all of these rows are used.", UserWarning, stacklevel=2)


def read_table(
    path: Path, *, evaluation: bool = False, unseen: bool = False, options: LayoutOptions | None = None
) -> Layout:
    """The splits that a table lists, and the class names in the order of their numbers.

    Args:
        path: of the table.
        evaluation: whether the images are for a trained network, which needs neither training images nor two classes.
        unseen: whether other splits may have classes that the training images do not have; they come last.
        options: which column has the labels.
    """
    rows, table = _open_table(path, options or LayoutOptions())
    check_repeated(rows, path)
    tree = TableTree(path, [row.image for row in rows])
    if table.targets is not None:
        _check_there(path, tree.files)
        return targets_layout(rows, tree, path, table.targets, options or LayoutOptions(), evaluation=evaluation)
    named = listed_names(path.parent / CLASS_FILE)
    if table.label:
        layout = layout_of_rows(rows, tree, path, named, table.label, evaluation=evaluation, unseen=unseen)
        _check_there(path, tree.files)
        return layout
    _check_there(path, tree.files)
    return layout_of_rows(rows, tree, path, named, "", evaluation=evaluation, unseen=unseen)


def layout_of_rows(
    rows: Sequence[Row],
    tree: Tree,
    where: Path,
    named: Sequence[str] | None,
    label: str,
    *,
    evaluation: bool,
    unseen: bool,
) -> Layout:
    """The splits of the rows of a table, whose images and masks are paths in a tree.

    Args:
        rows: of all splits.
        tree: of the files.
        where: the table, for messages.
        named: the names of the classes of masks, if they are listed.
        label: the column of the labels.
        evaluation, unseen: as in `read_table`.
    """
    if rows and rows[0].mask:
        pairs: dict[str, list[tuple[str, str]]] = {}
        for row in rows:
            pairs.setdefault(row.split, []).append((row.image, row.mask))
        first = pairs.get("train") or next(iter(pairs.values()))
        classes = mask_classes([partial(tree.open, mask) for _, mask in first], named, None, where)
        parts = {split: mask_split(tree, each, classes) for split, each in pairs.items()}
        return Layout(parts, classes.names, f"masks that {where.name} lists beside their images")
    spelled = joined((row.label for row in rows), where)
    train = not evaluation or any(row.split == "train" for row in rows)
    chosen = "train" if train else rows[0].split if rows else ""
    names = _sorted_classes({spelled[row.label] for row in rows if row.split == chosen})
    if len(names) < (1 if evaluation else 2):
        only = f"one class only, {names[0]!r}" if names else "no training images"
        raise UsageError(f"{where} has {only}; a classifier needs training images of at least two classes.")
    if unseen:
        names += _sorted_classes(set(spelled.values()) - set(names))
    numbers = {name: number for number, name in enumerate(names)}
    foreign = next((name for name in spelled.values() if name not in numbers), None)
    if foreign is not None:
        raise UsageError(f"{where} has the class {foreign!r}, which the training images do not have.")
    splits = {}
    for wanted in dict.fromkeys(row.split for row in rows):
        part = [(row.image, numbers[spelled[row.label]]) for row in rows if row.split == wanted]
        labels = torch.tensor([number for _, number in part], dtype=torch.int64)
        splits[wanted] = FileSplit(tree, [image for image, _ in part], labels)
    counts = counted_names(Counter(spelled[row.label] for row in rows))
    evidence = f"labels in the column {label!r} of {where.name} ({counts}){quantities_note(names)}"
    return Layout(splits, names, evidence)


class TableBeside(NamedTuple):
    """A table in a folder that names its images.

    Attributes:
        file: its path in the tree.
        rows: of existing files, with their paths in the tree.
        missing: number of its images that do not.
        label: its column of labels.
        targets: what other columns hold in place of one label.
    """

    file: str
    rows: list[Row]
    missing: int
    label: str
    targets: Targets | None = None


def tables_beside(
    tree: Tree, files: Sequence[str], images: Sequence[str], options: LayoutOptions
) -> tuple[list[TableBeside], list[UsageError]]:
    """The tables of a folder that name its images and have labels or masks, and why others have not.

    Args:
        tree: the folder.
        files: the tables in it.
        images: the images in it.
        options: which column has the labels.
    """
    tables, reasons = [], []
    finder = ImageFinder(images, tree.path)
    for file in files:
        try:
            with tree.open(file) as stream:
                table = Table(tree.path / file, stream.read(), options)
            rows = [_beside(row, file) for row in table.rows]
            if not rows or share_found(finder, [row.image for row in rows]) < _ENOUGH:
                continue
            found = [_found(row, finder) for row in rows]
        except UsageError as error:
            reasons.append(error)
            continue
        except (MereoError, OSError):
            continue
        there = set(images)
        split = split_of(Path(file).stem) or split_of(file.partition("/")[0] if "/" in file else "")
        rows = [
            row._replace(split=split) if split and row.split == "train" else row for row in found if row.image in there
        ]
        tables.append(TableBeside(file, rows, len(found) - len(rows), table.label, table.targets))
    return tables, reasons


def _beside(row: Row, file: str) -> Row:
    """A row with paths relative to the tree rather than to the folder of the table."""
    folder = file.rpartition("/")[0]
    if not folder or Path(row.image).is_absolute():
        return row
    return row._replace(image=f"{folder}/{row.image}", mask=f"{folder}/{row.mask}" if row.mask else "")
