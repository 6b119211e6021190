"""A CSV of paths and labels, and maybe splits."""

import csv
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from mereo.data.raw import RawDataset
from mereo.data.stream.labels import Part, make_dataset, split_name, split_of_word
from mereo.data.stream.source import FileStore
from mereo.errors import MereoError, UsageError

_PATHS = ("path", "file", "filename", "file_name", "image")
_LABELS = ("label", "class", "cls", "target")


def open_csv(files: Sequence[Path], data: str) -> RawDataset:
    """The images that CSV files name.

    A first row with names of columns (path, label and maybe split) says which is which; without one the first column
    is the path and the second the label. Paths are relative to the file; without a column of splits the name of the
    file decides.
    """
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for file in files:
        rows = _rows(file)
        head = [name.strip().lower() for name in rows[0]] if rows else []
        columns = [next((head.index(n) for n in names if n in head), None) for names in (_PATHS, _LABELS, ("split",))]
        path, label, split = columns
        if path is None or label is None:
            path, label, split = 0, 1, None
        else:
            rows = rows[1:]
        for number, row in enumerate(rows, 1):
            if len(row) <= max(path, label, split or 0):
                raise UsageError(f"row {number} of {file} has {len(row)} columns; it must hold a path and a label.")
            word = split_name(file) if split is None else split_of_word(row[split].strip())
            if word is None:
                raise UsageError(f"row {number} of {file} has the split {row[split or 0]!r}; write train, val or test.")
            found[word].append((str(file.parent / row[path].strip()), row[label].strip()))
    if not found:
        raise UsageError(f"data is {data!r}, which has no rows; each must hold a path and a label.")
    parts = {}
    for word, pairs in found.items():
        paths, texts = zip(*pairs, strict=True)
        values = np.array(texts, dtype=np.str_)
        whole = all(re.fullmatch(r"-?\d{1,9}", text) for text in texts)
        store = FileStore(None, paths)
        parts[word] = Part(store, torch.arange(len(paths)), values.astype(np.int64) if whole else values)
    return make_dataset(parts, None, data)


def _rows(file: Path) -> list[list[str]]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            return [row for row in csv.reader(stream) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise MereoError(f"the table {file} cannot be read ({error}).") from error
