"""Results as HTML, for a notebook."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from mereo.escape import for_terminal

_CELL = "style='text-align:left'"


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
    code = base64.b64encode(content).decode()
    return f"<img style='max-width:100%' src='data:image/png;base64,{code}'>" if content else ""


def read_picture(path: Path) -> bytes:
    """The content of a picture; empty without a file."""
    return path.read_bytes() if path.is_file() else b""
