"""Tutorials: Python scripts in cells, and what each cell printed and drew when `make tutorials` last ran them.

A line `# %% [markdown]` starts a cell of text, whose lines are comments; a line `# %%` starts a cell of code.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
OUTPUT = FOLDER / "output"
DIGEST = "code.sha256"
KEPT = (".png", ".html")
"""Kinds of files that a cell may give."""
_START = re.compile(r"^# %%(.*)\n", re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    """A piece of a script.

    Attributes:
        number: its place among the cells of code, from 1; 0 for text.
        content: the code, or the text without its comment signs.
        line: where the content starts in the script, from 1.
    """

    number: int
    content: str
    line: int


def scripts() -> list[Path]:
    """Every tutorial."""
    return sorted(FOLDER.glob("*.py"))


def cells(script: str) -> list[Cell]:
    """The cells of a script."""
    starts = list(_START.finditer(script))
    if not starts or script[: starts[0].start()].strip():
        raise ValueError("a tutorial starts with a line `# %% [markdown]` or `# %%`")
    listed: list[Cell] = []
    for here, after in zip(starts, [*starts[1:], None], strict=True):
        body = script[here.end() : after.start() if after else len(script)]
        line = script[: here.end()].count("\n") + 1
        if "[markdown]" in here[1]:
            listed.append(Cell(0, re.sub(r"^# ?", "", body, flags=re.MULTILINE).strip(), line))
        else:
            listed.append(Cell(1 + sum(cell.number > 0 for cell in listed), body.strip(), line))
    return listed


def digest(script: str) -> str:
    """Of the code alone, so that text may be mended without running everything."""
    code = "\n\n".join(cell.content for cell in cells(script) if cell.number)
    return hashlib.sha256(code.encode()).hexdigest()


def _shown(cell: Cell, name: str) -> Iterator[str]:
    if not cell.number:
        yield cell.content
        return
    yield f"```python\n{cell.content}\n```"
    printed = OUTPUT / name / f"{cell.number:02}.txt"
    if printed.exists():
        yield f"```console\n{printed.read_text().rstrip()}\n```"
    for file in sorted((OUTPUT / name).glob(f"{cell.number:02}-*")):
        title, place = file.stem[3:].replace("_", " "), f"output/{name}/{file.name}"
        yield f"[{f'![{title}]({place})' if file.suffix == '.png' else title}]({place})"


def page(script: Path) -> str:
    """The page of a tutorial: its text, its code, and what the code gave."""
    text, name = script.read_text(), script.stem
    kept = OUTPUT / name / DIGEST
    if not kept.exists() or kept.read_text().strip() != digest(text):
        raise ValueError(f"the output of {script.name} is not of its code; run `make tutorials`")
    parts = [part for cell in cells(text) for part in _shown(cell, name)]
    return "\n\n".join((*parts, f"The whole script: [{script.name}]({script.name}).")) + "\n"


def pages() -> dict[str, str]:
    """All of them."""
    return {f"tutorials/{script.stem}.md": page(script) for script in scripts()}
