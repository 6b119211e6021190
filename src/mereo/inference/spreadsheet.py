"""Tables as CSV that spreadsheets read, whatever characters names of files contain."""

import csv
import io
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from mereo.escape import for_terminal
from mereo.files import write_atomically

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "|", "%")
"""Characters that start a formula or a command in some spreadsheet; so do their full-width forms in some."""
Cell = str | int | float | None


def safe_cell(value: Cell) -> Cell:
    """A value that no spreadsheet takes for a formula, on one line.

    Text that could start one gets an apostrophe in front; control and format characters and bytes that are not text are
    written as escapes. Numbers stay numbers.
    """
    if value is None or isinstance(value, int | float):
        return value
    text = for_terminal(value)
    return f"'{text}" if unicodedata.normalize("NFKC", text.lstrip()[:1]).startswith(_FORMULA) else text


def table_text(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A table as CSV: a header, a line for each row, lines that end in CR LF, cells in quotes where needed."""
    target = io.StringIO()
    writer = csv.writer(target)
    writer.writerow([safe_cell(name) for name in columns])
    writer.writerows([safe_cell(cell) for cell in row] for row in rows)
    return target.getvalue()


def write_table(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Path:
    """Write a table as CSV in UTF-8 with a byte order mark, without which Excel reads another encoding."""
    write_atomically(path, table_text(columns, rows).encode("utf-8-sig"))
    return path
