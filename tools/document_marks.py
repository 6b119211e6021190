"""Marks in a document, between which a tool writes what it made:

    <!-- NAME ARGUMENT -->

    what the tool wrote

    <!-- end -->

The names are `measured` (`measured_lines.py`), `figures` (`fill_figures.py`), `compare` (`comparison_page.py`) and
`exchange` (`exchange_table.py`).
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from mereo.files import write_atomically

END = "<!-- end -->"


def arguments(page: Path, name: str) -> list[str]:
    """The arguments of the marks with a name, in order; each may occur once."""
    text = page.read_text(encoding="utf-8")
    places = re.findall(rf"^<!-- {re.escape(name)} ([^\n]+?) -->$", text, re.MULTILINE)
    if twice := sorted({argument for argument in places if places.count(argument) > 1}):
        raise SystemExit(f"{page} has more than one line <!-- {name} {twice[0]} -->; keep one of them")
    return places


def fill(page: Path, name: str, wanted: Iterable[str], block: Callable[[str], str]) -> None:
    """Write `block(argument)` below the mark of each wanted argument; what stood there is replaced.

    Other marks of the page stay as they are. If a mark or its end is missing, or a mark occurs twice, nothing is made.
    """
    text, known = page.read_text(encoding="utf-8"), arguments(page, name)
    places = {argument: f"<!-- {name} {argument} -->\n" for argument in wanted}
    for argument, mark in places.items():
        if argument not in known:
            raise SystemExit(f"{page} has no line {mark.strip()}; add it where the text belongs, and {END} below it")
        old, end, _ = text.partition(mark)[2].partition(f"{END}\n")
        if not end or re.search("^<!-- ", old, re.MULTILINE):
            raise SystemExit(f"{page}: {mark.strip()} has no line {END} before the next mark; add it")
    for argument, mark in places.items():
        made = block(argument).strip()
        before, _, rest = text.partition(mark)
        after = rest.partition(f"{END}\n")[2]
        text = "\n".join([f"{before}{mark}", *([f"{made}\n"] if made else []), f"{END}\n{after}"])
    write_atomically(page, text.encode())
