"""Results as text and as HTML, for a terminal and a notebook."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from mereo.escape import for_terminal

_CELL = "style='text-align:left'"


def text_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in plain columns; without a heading where the columns have no names."""
    cells = [[for_terminal(cell) for cell in row] for row in rows]
    lines = [list(columns), *cells] if any(columns) else cells
    widths = [max((len(line[place]) for line in lines), default=0) for place in range(len(columns))]
    return "\n".join(
        "  ".join(c.ljust(width) for c, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def html_table(columns: Sequence[str], rows: Sequence[Sequence[object]], pictures: Sequence[bytes | None] = ()) -> str:
    """A table as HTML with escaped text; `pictures` are a first column of PNG images, one for each row."""
    head = [*([""] if pictures else []), *columns]
    parts = ["<table>"]
    if any(columns):
        parts.append("<tr>" + "".join(f"<th {_CELL}>{escape(name)}</th>" for name in head) + "</tr>")
    for place, row in enumerate(rows):
        first = f"<td>{png(pictures[place] or b'')}</td>" if pictures else ""
        cells = "".join(f"<td {_CELL}>{escape(for_terminal(cell))}</td>" for cell in row)
        parts.append(f"<tr>{first}{cells}</tr>")
    return "".join([*parts, "</table>"])


def png(content: bytes) -> str:
    """An image within HTML; nothing for no content."""
    if not content:
        return ""
    return f"<img style='max-width:100%' src='data:image/png;base64,{base64.b64encode(content).decode()}'>"


def read_picture(path: Path) -> bytes:
    """The content of a picture; empty where there is none."""
    return path.read_bytes() if path.is_file() else b""
