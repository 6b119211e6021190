"""Rows of the table's files: dataclasses of texts and numbers, written as CSV and read back."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from mereo.files import write_atomically

_PARSED: Mapping[Any, Callable[[str], Any]] = {str: str, float: float, int: int}


@dataclass(frozen=True)
class Row:
    """A row of a file; a subclass adds the columns."""

    @classmethod
    def read(cls, path: Path) -> list[Self]:
        """All rows of a file; no rows without a file."""
        columns = {field.name: _PARSED[field.type] for field in fields(cls)}
        lines = csv.DictReader(path.read_text().splitlines()) if path.exists() else ()
        return [cls(**{name: parse(line[name]) for name, parse in columns.items()}) for line in lines]


def write_rows(path: Path, kind: type[Row], rows: Sequence[Row]) -> None:
    """Write the rows of one file, atomically.

    Args:
        kind: of the rows.
    """
    columns = [field.name for field in fields(kind)]
    lines = [",".join(columns), *(",".join(str(getattr(row, name)) for name in columns) for row in rows)]
    write_atomically(path, ("\n".join(lines) + "\n").encode())
