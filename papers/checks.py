"""`python -m papers check [PAPER ...]`: run the claims that take less than five minutes again; print what differs.

A claim is checked where its page, `papers/PAPER/claims.md`, has a comment with columns of the results:

    <!-- check: test % within 2; KL within 0.05 -->        above a table: each of its cells in these columns
    <!-- check: error of outputs at most 1e-15 -->         every row of the results

The results are those of the last commands above the comment: of one `mereo reproduce`, or of several `mereo evaluate`
in lines below each other, whose columns are "weights" and "test %". A row of the table is the row of the results with
the same first cell; of several with the same, the first, the second and so on.
"""

import json
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

from mereo.cli import evaluate
from mereo.cli.comparison_options import ReproduceOptions
from mereo.cli.parse import parse
from mereo.errors import MereoError, UsageError, first_line, unknown
from mereo.runtime.printing import say
from papers.listing import NAMES
from papers.reproduce import given_options, run_experiment

FOLDER = Path(__file__).parent
_COMMAND = re.compile(r" {4}mereo ((reproduce|evaluate) .+)")
_CHECK = re.compile(r"<!-- check: (.+) -->")
_LIMIT = re.compile(r"(.+) (within|at most) (\S+)")

Tables = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass
class Claim:
    """Figures of a page.

    Attributes:
        commands: words after `mereo`.
        limits: column -> ("within", tolerance) or ("at most", bound).
        columns, rows: of the table of the page; empty where every row of the results is checked.
    """

    commands: list[str]
    limits: dict[str, tuple[str, float]]
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


def read_claims(page: Path) -> Iterator[Claim]:
    """The checked claims of a page, in order."""
    commands, claim = list[str](), None
    for before, line in pairwise(["", *page.read_text(encoding="utf-8").splitlines()]):
        if found := _COMMAND.fullmatch(line):
            commands = [*commands, found[1]] if _COMMAND.fullmatch(before) else [found[1]]
        elif found := _CHECK.fullmatch(line):
            parts = [_LIMIT.fullmatch(part.strip()) for part in found[1].split(";")]
            claim = Claim(commands, {part[1]: (part[2], float(part[3])) for part in parts if part})
            if not commands or None in parts:
                raise ValueError(f"{page}: {line} has no command above it, or is not written COLUMN within NUMBER")
            if any(way == "at most" for way, _ in claim.limits.values()):
                yield claim
                claim = None
        elif claim is not None and line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not claim.columns:
                claim.columns = cells
            elif not set(line) <= set("|- "):
                claim.rows.append(cells)
        elif claim is not None and claim.rows:
            yield claim
            claim = None
    if claim is not None:
        yield claim


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def differences(claim: Claim, tables: Tables) -> list[str]:
    """What of a claim the results do not confirm, a line each."""
    lines = []
    for column, (way, limit) in claim.limits.items():
        found = next((rows for rows in tables.values() if rows and column in rows[0]), None)
        if found is None:
            lines.append(f"the results have no column {column!r}")
            continue
        if way == "at most":
            over = [row for row in found if not float(row[column]) <= limit]
            lines += [f"{_shown(next(iter(row.values())))}: {column} is {row[column]}, over {limit:g}" for row in over]
            continue
        by_name: dict[str, list[Mapping[str, Any]]] = {}
        for row in found:
            by_name.setdefault(_shown(next(iter(row.values()))), []).append(row)
        for cells in claim.rows:
            said = cells[claim.columns.index(column)].replace(",", "")
            if not by_name.get(cells[0]):
                lines.append(f"the results have no row {cells[0]!r}, or not so many")
                continue
            row = by_name[cells[0]].pop(0)
            if said and not abs(float(row[column]) - float(said)) <= limit:
                lines.append(f"{cells[0]}: {column} is {row[column]:g}, on the page {said} (within {limit:g})")
    return list(dict.fromkeys(lines))


def _results(command: str, output: Path) -> Tables:
    verb, *words = command.split()
    if verb == "evaluate":
        with redirect_stdout(StringIO()) as printed:
            evaluate.run([*words, "--json", "--out", str(output / "evaluation")], verb)
        models = json.loads(printed.getvalue())["models"]
        return {"": [{"weights": f"`{name}`", "test %": 100 * each["accuracy"]} for name, each in models.items()]}
    options = parse(ReproduceOptions, words, verb)
    name = str(options.study).replace("-", "_")
    tables: Tables = run_experiment(name, given_options(options), output)["tables"]
    return tables


def check(names: Sequence[str]) -> int:
    """Check the claims of some papers, or of all; 1 if any differs or cannot be run."""
    for name in names:
        if name not in NAMES:
            raise unknown("paper", name, NAMES)
    failed = False
    for name in names or NAMES:
        results: dict[str, Tables] = {}
        for claim in read_claims(FOLDER / name / "claims.md"):
            shown, began = f"{name}: mereo {'; '.join(claim.commands)}", time.monotonic()
            tables: dict[str, list[Mapping[str, Any]]] = {}
            try:
                for command in claim.commands:
                    if command not in results:
                        with tempfile.TemporaryDirectory() as output:
                            results[command] = _results(command, Path(output))
                    for title, rows in results[command].items():
                        tables.setdefault(title, []).extend(rows)
            except (MereoError, UsageError, OSError) as error:
                say(f"{shown}: cannot be run: {first_line(error)}")
                failed = True
                continue
            lines = differences(claim, tables)
            failed = failed or bool(lines)
            verdict = "as on the page" if not lines else "differs"
            say(f"{shown}: {verdict} ({time.monotonic() - began:.0f} s)")
            for line in lines:
                say(f"    {line}")
    return int(failed)
