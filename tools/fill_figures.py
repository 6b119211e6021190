"""Put the results of `mereo bench SUITE --report FOLDER` into a page of the documentation.

Run as `python tools/fill_figures.py FOLDER docs/attention.md`; `make figures` measures as well. Below the mark
`<!-- figures SUITE ... -->` it writes the command, the machine, the tables that the suite made of its cases (or one of
times where it makes none) and the picture of each suite that was measured.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import document_marks
from mereo.bench import Run, read_run
from mereo.bench.tables import milliseconds, three_digits

MIB = 2**20


def command_of(run: Run) -> str:
    """The command that measured a run."""
    asked = run.options
    words = ["mereo bench", run.suite]
    if asked["threads"]:
        words += ["--threads", *map(str, asked["threads"])]
    if asked["sizes"]:
        words += ["--sizes", *(f"{name}={','.join(map(str, values))}" for name, values in asked["sizes"])]
    words += ["--quick"] if asked["quick"] else []
    words += [] if asked["memory"] else ["--no-memory"]
    return " ".join([*words, "--seconds", f"{asked['seconds']:g}"])


def _table(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return f"{title}\n\n" + "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def _times(run: Run) -> str:
    """Time and memory of each contender of each case."""
    rows = []
    for group in run.groups():
        for m in group:
            reference = next((x for x in group if x.contender == m.reference and x.wall is not None), None)
            ratio = "-" if m.wall is None or reference is None else f"{reference.wall.median / m.wall.median:.2f}"
            time = m.status if m.wall is None else milliseconds(m.wall.median)
            peak = "-" if not m.resident else three_digits(m.resident / MIB)
            rows.append((m.case, m.mode, m.contender, time, ratio, peak))
    return _table("Times", ("case", "mode", "what", "ms", "times as fast as the first", "peak MiB"), rows)


def section(run: Run, picture: str | None) -> str:
    """What a page shows of a run."""
    facts: dict[str, Any] = run.machine
    parts = [f"### {run.suite}", f"    {command_of(run)}"]
    parts.append(f"{facts['processor']}, {facts['cores']} cores, torch {facts['torch']}; {run.created[:10]}.")
    made = [_table(t["title"], tuple(t["columns"]), [tuple(row) for row in t["rows"]]) for t in run.tables]
    parts += made or [_times(run)]
    if picture is not None:
        parts.append(f"![{run.suite}]({picture})")
    return "\n\n".join(parts)


def fill(page: Path, folder: Path) -> list[str]:
    """Replace the figures of a page; the suites that were in the folder."""
    filled: list[str] = []

    def block(suites: str) -> str:
        parts = []
        for suite in suites.split():
            if not (folder / f"{suite}.json").is_file():
                continue
            picture, drawn = page.parent / "images" / "bench" / f"{suite}.png", folder / f"{suite}.png"
            if drawn.is_file():
                picture.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(drawn, picture)
            shown = f"images/bench/{suite}.png" if drawn.is_file() else None
            parts.append(section(read_run(folder / f"{suite}.json"), shown))
            filled.append(suite)
        return "\n\n".join(parts)

    document_marks.fill(page, "figures", document_marks.arguments(page, "figures"), block)
    return filled


if __name__ == "__main__":
    for name in sys.argv[2:]:
        print(name, "shows", ", ".join(fill(Path(name), Path(sys.argv[1]))) or "nothing")
