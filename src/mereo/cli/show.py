"""Lines and tables for people: framed on a terminal, plain columns in a pipe, with control characters escaped."""

import sys
from collections.abc import Iterator, Sequence
from itertools import chain, count
from pathlib import Path

from mereo.escape import for_terminal
from mereo.runtime.printing import say
from mereo.runtime.text import text_table

WHOLE = 20
"""Longest cell, in characters, that is never wrapped, however narrow the terminal is."""
FRAME = 3
"""Width of a column's padding."""


def new_folder(name: str) -> Path:
    """The first of name, name-2, ... that does not exist."""
    return next(path for path in map(Path, chain([name], (f"{name}-{n}" for n in count(2)))) if not path.exists())


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """A table on standard output; one too wide for the terminal becomes several, each with the first column."""
    title = for_terminal(title)
    if sys.stdout.isatty():
        _draw(columns, [[for_terminal(cell) for cell in row] for row in rows], title)
        return
    if title:
        say(title)
    say(text_table(columns, rows))


def _draw(columns: Sequence[str], cells: Sequence[Sequence[str]], title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    by_column = list(zip(columns, *cells, strict=True))
    most = [max(Text(cell).cell_len for cell in column) for column in by_column]
    # The first column names the row.
    least = [most[0], *(_least(column) for column in by_column[1:])]
    least = [min(width, console.width // 2) for width in least]
    for number, places in enumerate(_parts(least, console.width)):
        # Text is literal, where a string could be read as markup: names of files and classes may contain anything.
        table = Table(title=Text(title, "table.title") if title and not number else None, title_justify="left")
        widths = _widths([least[p] for p in places], [most[p] for p in places], console.width)
        for place, width in zip(places, widths, strict=True):
            table.add_column(Text(columns[place]), width=width, overflow="fold")
        for row in cells:
            table.add_row(*(Text(row[place]) for place in places))
        console.print(table)


def _least(column: Sequence[str]) -> int:
    """Width that a column needs: short cells are not wrapped; its header and long cells may break between words."""
    from rich.cells import cell_len

    whole = [cell for cell in column[1:] if cell_len(cell) <= WHOLE]
    return max(cell_len(part) for part in ["", *whole, *(word for cell in column for word in cell.split())])


def _parts(least: Sequence[int], room: int) -> Iterator[list[int]]:
    """The columns by number, in groups of the first and the others that fit."""
    part = [0]
    for place in range(1, len(least)):
        if len(part) > 1 and sum(least[p] + FRAME for p in (*part, place)) >= room:
            yield part
            part = [0]
        part.append(place)
    yield part


def _widths(least: Sequence[int], most: Sequence[int], room: int) -> list[int]:
    """The width of each column: the widest shrink first, none below its minimum."""
    widths = list(most)
    while sum(width + FRAME for width in widths) >= room:
        loose = [place for place, width in enumerate(widths) if width > least[place]]
        if not loose:
            break
        widths[max(loose, key=lambda place: widths[place])] -= 1
    return widths
