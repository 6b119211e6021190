"""Several labels of each image, or numbers, in the columns of a table."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mereo.data.contents import counted_names
from mereo.data.encoded import FileSplit
from mereo.data.files import Layout
from mereo.data.layout_options import LayoutOptions
from mereo.data.names import words_of
from mereo.data.spelling import joined
from mereo.data.trees import Tree
from mereo.errors import UsageError
from mereo.runtime.text import counted

Cells = list[tuple[int, dict[str, str]]]
"""The lines of a table by number, each with its cells by column."""
Target = tuple[str, ...] | tuple[float, ...]
"""The labels of an image, or its numbers."""
TASKS = {"multilabel": "multi_hot", "regression": "values", "attribute_embedding": "attributes"}
"""Tasks that several labels, numbers and attributes are for, with the field of a batch that they become."""
ABOUT = frozenset({"id", "ids", "user", "annotator", "date", "time", "url", "source", "index", "width", "height"})
"""Words in the names of columns that are no labels."""
_SEPARATORS = (";", "|")
"""What separates several labels in a cell; a comma and a space do too where --task multilabel is given."""
_MISSING = frozenset({"", "nan", "na", "n/a", "none", "null"})
_BITS = {"0": 0, "0.0": 0, "false": 0, "no": 0, "-1": -1, "-1.0": -1, "1": 1, "1.0": 1, "true": 1, "yes": 1}
_DECIMAL_COMMA, _THOUSANDS = re.compile(r"[+-]?\d*(,\d+)?"), re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})?")
_MANY, _SHOWN = 20, 5
"""Numbers from which on whole numbers may be quantities rather than classes; names that are shown."""


class Targets(NamedTuple):
    """What the columns of a table hold in place of one label.

    Attributes:
        field: of a batch: "multi_hot" for several labels, "values" for numbers, "attributes" for a value a column.
        columns: that hold them.
        separator: of the labels in a cell; a space for any white space. None for a column for each label or number.
    """

    field: str
    columns: tuple[str, ...]
    separator: str | None = None

    def read(self, row: Mapping[str, str], where: str) -> Target | None:
        """The labels or numbers of a row; None where a cell is empty or NaN.

        Args:
            row: cells by column.
            where: of the row, for messages.
        """
        cells = [(row.get(name) or "").strip() for name in self.columns]
        if self.separator is not None:
            return tuple(filter(None, map(str.strip, _parts(cells[0], self.separator))))
        if self.field == "attributes":
            return tuple("" if cell.lower() in _MISSING else cell for cell in cells)
        if any(cell.lower() in _MISSING for cell in cells):
            return None
        if self.field == "multi_hot":
            return tuple(name for name, cell in zip(self.columns, cells, strict=True) if _bit(cell) == 1)
        numbers = [float(cell.replace(",", ".")) for cell in cells]
        for name, cell, number in zip(self.columns, cells, numbers, strict=True):
            if not math.isfinite(number):
                raise UsageError(f"{where}: {name} is {cell!r}; it must be a finite number, or empty for none.")
        return tuple(numbers)


def is_number(cell: str) -> bool:
    """Whether a cell is a number; NaN and infinity count."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _has_decimal_commas(values: Iterable[str]) -> bool:
    """Whether all values are numbers, some of them with a comma in the place of a point."""
    values = [*values]
    return any("," in value for value in values) and all(_DECIMAL_COMMA.fullmatch(value) for value in values)


def _bit(cell: str) -> int | None:
    return _BITS.get(cell.strip().lower())


def _parts(cell: str, separator: str) -> list[str]:
    return cell.split() if separator == " " else cell.split(separator)


def filled(column: str, cells: Cells) -> Counter[str]:
    """How often each value occurs in a column; empty cells and NaN are left out."""
    values = ((row.get(column) or "").strip() for _, row in cells)
    return Counter(value for value in values if value.lower() not in _MISSING)


def has_fractions(values: Iterable[str]) -> bool:
    """Whether all values are numbers, some of them not whole."""
    values = [*values]
    return bool(values) and all(map(is_number, values)) and not all(_whole(float(value)) for value in values)


def _whole(number: float) -> bool:
    return math.isfinite(number) and number.is_integer()


def find_targets(
    path: Path, header: Sequence[str], cells: Cells, found: Mapping[str, str], options: LayoutOptions
) -> Targets | None:
    """What the columns of a table hold, if these are several labels or numbers; None for one label or a mask.

    Args:
        path: of the table, for messages.
        header: names of the columns.
        cells: of the rows.
        found: the columns of paths, labels, masks and splits as far as their names tell; "" for none.
        options: the task and the columns that are stated.

    Raises:
        UsageError: for columns that do not hold what the task needs, or from which nothing can be chosen.
    """
    task, given = options.stated_task, options.label_column
    if task not in (None, "classification", *TASKS) or (found["mask"] and not given and task not in TASKS):
        return None
    others = [name for name in header if name not in (found["path"], found["split"])]
    free = {name: filled(name, cells) for name in others if given or ABOUT.isdisjoint(words_of(name))}
    binary = [name for name, values in free.items() if _is_binary(values)]
    if task == "attribute_embedding":
        recurring = (name for name, values in free.items() if 2 <= len(values) <= max(len(cells) // 2, 2))
        if not (columns := given or tuple(recurring)):
            raise UsageError(
                f"{path} has no column whose values recur, as those of attributes do; give --label-column."
            )
        return Targets("attributes", columns)
    columns = given or ((found["label"],) if found["label"] else ())
    if not columns:
        numeric = [
            name
            for name, values in free.items()
            if values and (all(map(is_number, values)) or (task == "regression" and _has_decimal_commas(values)))
        ]
        fractions = [name for name in numeric if has_fractions(free[name])]
        if task == "regression":
            numeric = numeric or [name for name, values in free.items() if _mostly_numbers(values)]
            columns = tuple(name for name in numeric if name not in binary) or tuple(numeric)
        elif len(binary) > 1:
            columns = tuple(binary)
        elif listed := _separated(path, free, cells, task):
            columns = (listed,)
        elif task is None and len(fractions) == len(numeric) > 0 and not _may_be_classes(free, cells):
            columns = tuple(fractions)
            if len(columns) > 1:
                raise UsageError(
                    f"{path} has no column 'label', and numbers in {', '.join(map(repr, columns))[:400]}; give those to"
                    f" predict, such as --label-column {' '.join(columns[:_SHOWN])}."
                )
        if not columns:
            if task is None and not _may_be_classes(free, cells):
                for name in free:
                    _are_numbers(path, (name,), free, several=False)  # numbers with other text in between
            return None
    comma = next((name for name in columns if task is None and _has_decimal_commas(free[name])), None)
    if comma is not None:
        raise UsageError(
            f"{path} has {next(value for value in free[comma] if ',' in value)!r} in the column {comma!r}; give --task"
            " regression if these are numbers with a decimal comma, or --task multilabel if they are labels."
        )
    if task == "regression" or (task is None and _are_numbers(path, columns, free, several=len(columns) > 1)):
        return _of_numbers(path, columns, cells)
    if len(columns) > 1:
        strange = [name for name in columns if name not in binary]
        if strange:
            held = next((value for value in free[strange[0]] if _bit(value) is None), "nothing")
            raise UsageError(
                f"label_column is {' '.join(columns)[:200]}, and {strange[0]} holds {held[:80]!r};"
                " several columns must all hold 0 and 1, or all numbers."
            )
        one_each = all(sum(_bit(row.get(name) or "") == 1 for name in columns) == 1 for _, row in cells)
        return None if task == "classification" or (one_each and task is None) else Targets("multi_hot", columns)
    if task == "classification":
        return None
    if task == "multilabel" and columns[0] in binary:
        return Targets("multi_hot", columns)
    separator = _separator(free[columns[0]], forced=task == "multilabel")
    return None if separator is None else Targets("multi_hot", columns, separator)


def _separated(path: Path, free: Mapping[str, Counter[str]], cells: Cells, task: str | None) -> str | None:
    """The column whose cells hold several labels, or None if no column does or another may hold classes."""
    if task == "classification":
        return None
    listed = [name for name, values in free.items() if _separator(values, forced=False) is not None]
    if not listed and task == "multilabel":
        listed = [name for name, values in free.items() if any("," in value or " " in value for value in values)]
    others = {name: values for name, values in free.items() if name not in listed}
    if not listed or (task is None and _may_be_classes(others, cells)):
        return None
    if len(listed) > 1:
        raise UsageError(
            f"{path} has several labels in each of the columns {', '.join(map(repr, listed))[:400]}; give one of them,"
            f" such as --label-column {listed[0]}."
        )
    return listed[0]


def _is_binary(values: Counter[str]) -> bool:
    """Whether a column holds 0 and 1, or -1 and 1, or their words."""
    bits = {_bit(value) for value in values}
    return bool(bits) and None not in bits and not {0, -1} <= bits


def _may_be_classes(free: Mapping[str, Counter[str]], cells: Cells) -> bool:
    """Whether a column holds classes: values that recur, and no fractions."""
    most = max(len(cells) // 2, 2)
    return any(2 <= len(v) <= most and not has_fractions(v) and not _is_mixed(v) for v in free.values())


def _are_numbers(path: Path, columns: Sequence[str], free: Mapping[str, Counter[str]], *, several: bool) -> bool:
    """Whether columns hold numbers rather than classes: all of them numbers, and of one column some not whole."""
    if several:
        return all(all(map(is_number, free[name])) for name in columns) and not all(
            _is_binary(free[name]) for name in columns
        )
    values = free[columns[0]]
    if _is_mixed(values):
        raise _mixed(path, columns[0], values)
    return has_fractions(values)


def _mostly_numbers(values: Counter[str]) -> bool:
    return 2 * sum(map(is_number, values)) > len(values)


def _is_mixed(values: Counter[str]) -> bool:
    """Whether a column holds numbers, some of them not whole, and a few cells of other text."""
    numbers = [value for value in values if is_number(value)]
    return len(numbers) < len(values) and _mostly_numbers(values) and has_fractions(numbers)


def _mixed(path: Path, column: str, values: Counter[str]) -> UsageError:
    text = {value: count for value, count in values.items() if not is_number(value)}
    return UsageError(
        f"{path} has numbers in the column {column!r}, and {counted(sum(text.values()), 'cell')} of other text,"
        f" such as {next(iter(text))!r}; write numbers, leave these cells empty, or remove the rows."
    )


def _of_numbers(path: Path, columns: tuple[str, ...], cells: Cells) -> Targets:
    for name in columns:
        values = filled(name, cells)
        if not values:
            raise UsageError(f"{path} has no number in the column {name!r}; leave it out of --label-column.")
        if _has_decimal_commas(values):
            if all(map(_THOUSANDS.fullmatch, values)):
                raise UsageError(
                    f"{path} has {next(value for value in values if ',' in value)!r} in the column {name!r}, which may"
                    " be a fraction or thousands; write it without the comma, or with a point."
                )
        elif not all(map(is_number, values)):
            raise _mixed(path, name, values)
    return Targets("values", columns)


def _separator(values: Counter[str], *, forced: bool) -> str | None:
    """What separates the labels in the cells of a column; None if each cell is one label.

    White space only separates words that recur in several cells of different numbers of words: names of classes may
    have spaces as well. `forced` takes the first separator that occurs.
    """
    for mark in (*_SEPARATORS, *((",",) if forced else ())):
        if any(mark in value for value in values):
            return mark
    words = Counter(word for value in values for word in set(value.split()))
    lengths = {len(value.split()) for value in values}
    if forced:
        return " "
    return " " if len(lengths) > 1 and 2 * len(words) <= len(values) and min(words.values()) > 1 else None


def quantities_note(names: Sequence[str]) -> str:
    """A note on whole numbers that are taken for classes and may be quantities; empty for few."""
    many = len(names) > _MANY and all(map(is_number, names))
    return "; give --task regression if these are quantities" if many else ""


class SplitTargets(NamedTuple):
    """The targets of each split.

    Attributes:
        rows: with targets, by split.
        fields: the tensor of these rows, by split.
        names: of the outputs.
        evidence: what the columns hold, in a few words.
    """

    rows: dict[str, list[Any]]
    fields: dict[str, Tensor]
    names: tuple[str, ...]
    evidence: str


def targets_layout(
    rows: Sequence[Any], tree: Tree, where: Path, targets: Targets, options: LayoutOptions, *, evaluation: bool
) -> Layout:
    """The splits of the rows of a table with several labels or numbers, and the names of these.

    Args:
        tree: of the files that the rows name as `image`.
        rows, where, targets, options, evaluation: as for `split_targets`.
    """
    found = split_targets(rows, where, targets, options, evaluation=evaluation)
    splits = {}
    for split, part in found.rows.items():
        splits[split] = FileSplit(tree, [row.image for row in part], torch.zeros(len(part), dtype=torch.int64))
        splits[split].fields = {targets.field: found.fields[split]}
    return Layout(splits, found.names, found.evidence)


def split_targets(
    rows: Sequence[Any], where: Path, targets: Targets, options: LayoutOptions, *, evaluation: bool
) -> SplitTargets:
    """The several labels or numbers of each split, as tensors, and their names.

    Args:
        rows: with `split`, and `target`, None where a cell is empty.
        where: the table, for messages.
        targets: what the columns hold.
        options: with the names of the outputs of a trained network, which decide the order.
        evaluation: whether the images are for a trained network.
    """
    kept = [row for row in rows if row.target is not None]
    columns = ", ".join(map(repr, targets.columns[:_SHOWN])) + (", ..." if len(targets.columns) > _SHOWN else "")
    plural = "s" if len(targets.columns) > 1 else ""
    if not kept:
        raise UsageError(f"{where} has an empty cell in every row of the column{plural} {columns}; fill them.")
    empty = len(rows) - len(kept)
    notes = [f"{counted(empty, 'row')} with an empty cell or NaN left out"] if empty else []
    train = [row for row in kept if row.split == "train"] or (kept if evaluation else [])
    if not train:
        raise UsageError(f"{where} has no training images; its split must be train for some rows, or left out.")
    make = {"values": _number_table, "attributes": _attribute_table}.get(targets.field, _label_table)
    names, table, evidence = make(kept, train, where, targets, options, evaluation)
    parts = {split: [row for row in kept if row.split == split] for split in dict.fromkeys(row.split for row in kept)}
    fields = {split: table(part) for split, part in parts.items()}
    evidence = evidence.replace("{}", f"in the column{plural} {columns} of {where.name}", 1)
    return SplitTargets(parts, fields, names, "; ".join([evidence, *notes]))


_Made = tuple[tuple[str, ...], Callable[[Sequence[Any]], Tensor], str]
"""Names of the outputs, the tensor of some rows, and what the columns hold, with {} for their place."""


def _label_table(
    kept: Sequence[Any], train: Sequence[Any], where: Path, targets: Targets, options: LayoutOptions, evaluation: bool
) -> _Made:
    spelled = joined((label for row in kept for label in row.target), where)
    held = [tuple(sorted({spelled[label] for label in row.target})) for row in train]
    sets, counts = {*held}, Counter(label for labels in held for label in labels)
    known = options.names or (targets.columns if targets.separator is None else ())
    names = tuple(known or sorted(counts))
    foreign = Counter(spelled[label] for row in kept for label in row.target if spelled[label] not in {*names})
    rare = Counter(spelled[label] for row in kept for label in row.target if not counts[spelled[label]])
    if foreign and options.names:
        raise UsageError(
            f"{where} has the labels {counted_names(foreign)}, which the network does not have; remove them."
        )
    if rare and not evaluation and not options.names:
        raise UsageError(
            f"{where} has labels that no training image has ({counted_names(rare)}); add training images with them, or"
            " remove them."
        )
    if not evaluation and len(sets) == 1:
        only = ", ".join(next(iter(sets))) or "none"
        raise UsageError(
            f"{where} has the same labels for all {len(train):,} training images ({only}), so there is nothing to"
            " learn; give a column that differs."
        )
    numbers = {name: number for number, name in enumerate(names)}

    def table(part: Sequence[Any]) -> Tensor:
        hot = torch.zeros(len(part), len(names), dtype=torch.int8)
        for place, row in enumerate(part):
            for label in row.target:
                hot[place, numbers[spelled[label]]] = 1
        return hot

    bare = sum(not row.target for row in kept)
    apart = {None: "", " ": ", separated by spaces"}.get(targets.separator, f", separated by {targets.separator!r}")
    without = f"; {bare:,} images have none" if bare else ""
    return names, table, f"several labels of an image {{}}{apart} ({len(names)}: {counted_names(counts)}{without})"


def _number_table(
    kept: Sequence[Any], train: Sequence[Any], where: Path, targets: Targets, options: LayoutOptions, evaluation: bool
) -> _Made:
    def table(part: Sequence[Any]) -> Tensor:
        return torch.tensor([row.target for row in part], dtype=torch.float64).float()

    values = table(train)
    for name, column in zip(targets.columns, values.T, strict=True):
        if not bool(column.isfinite().all()):
            raise UsageError(f"{where} has numbers in {name!r} that are too large for single precision; scale them.")
        if not evaluation and float(column.min()) == float(column.max()):
            raise UsageError(
                f"{where} has the number {float(column[0]):g} in {name!r} for all {len(train):,} training images, so"
                " there is nothing to learn; leave the column out of --label-column."
            )
    shown = [
        f"{name} {float(column.min()):.4g} to {float(column.max()):.4g}"
        for name, column in [*zip(targets.columns, values.T, strict=True)][:_SHOWN]
    ]
    return targets.columns, table, f"numbers {{}} ({', '.join(shown)})"


def _attribute_table(
    kept: Sequence[Any], train: Sequence[Any], where: Path, targets: Targets, options: LayoutOptions, evaluation: bool
) -> _Made:
    columns = [sorted({row.target[place] for row in kept} - {""}) for place in range(len(targets.columns))]
    numbers = [{"": -1} | {value: number for number, value in enumerate(values)} for values in columns]

    def table(part: Sequence[Any]) -> Tensor:
        rows = [[of[value] for of, value in zip(numbers, row.target, strict=True)] for row in part]
        return torch.tensor(rows, dtype=torch.int64).reshape(len(part), len(numbers))

    counts = [len(column[column >= 0].unique()) for column in table(train).T]
    for name, count in zip(targets.columns, counts, strict=True):
        if count < 2 and not evaluation:
            raise UsageError(
                f"{where} has {counted(count, 'value')} in {name!r} for all {len(train):,} training images, so there is"
                " nothing to learn; leave the column out of --label-column."
            )
    shown = [f"{name} {counted(count, 'value')}" for name, count in zip(targets.columns, counts, strict=True)]
    return targets.columns, table, f"attributes {{}} ({', '.join(shown[:_SHOWN])})"
