"""`python -m papers check [PAPER ...]`: run the claims that take less than five minutes again; print what differs.

A page, `papers/PAPER/claims.md`, states below each block of commands what is checked, in a comment, or why nothing is:

    <!-- check: test % within 2; KL within 0.05 -->        above a table: each of its cells in these columns
    <!-- check: error of outputs at most 1e-15 -->         every row of the results
    <!-- not checked: takes two hours -->

The results are the tables of one `mereo reproduce`, or of several `mereo evaluate`, one below the other,
whose columns are "weights" and "test %". A row of the page is the row of the results with the same first cell; of
several with the same, the first, the second and so on. Where a page uses other words than the results, it names both:

    loss a step = loss within 0.1                    a column of the page, and of the results
    deep = 24 > loss and test % within 0.1 and 3     two numbers in each cell, of the table with "24" in its title
    row norm first = pre_norm                        a row of the page, and of the results
"""

import json
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Any

from mereo.cli import evaluate
from mereo.cli.comparison_options import ReproduceOptions
from mereo.cli.parse import parse
from mereo.errors import MereoError, UsageError, first_line, unknown
from mereo.runtime.printing import say
from papers.listing import NAMES
from papers.reproduce import given_options, results_of

FOLDER = Path(__file__).parent
_COMMENT = re.compile(r"<!-- (check|not checked):\s+(.+?)\s+-->", re.DOTALL)
_LIMIT = re.compile(
    r"(?:(?P<page>.+?) = )?(?:(?P<table>.+?) > )?(?P<columns>.+?) (?P<way>within|at most) (?P<limits>.+)"
)
_ROW = re.compile(r"row (?P<page>.+) = (?P<results>.+)")
_NUMBER = re.compile(r"-?(?:\d[\d,]*)?\.?\d+(?:e-?\d+)?")

Tables = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Limit:
    """How far numbers may be from the page's.

    Attributes:
        page: the column of the page.
        table: what the title of the table of the results contains; None for the first table with the columns.
        columns: of the results, one for each number in a cell.
        way: "within" or "at most".
        limits: tolerances or bounds, one for each column.
    """

    page: str
    table: str | None
    columns: tuple[str, ...]
    way: str
    limits: tuple[float, ...]


@dataclass
class Claim:
    """Figures of a page.

    Attributes:
        commands: lines of a block of the page.
        reason: why it is not checked; empty if it is.
        limits: of the columns.
        renamed: rows of the page -> of the results, if they differ.
        columns, rows: of the table of the page; empty if every row of the results is checked.
    """

    commands: list[str]
    reason: str = ""
    limits: list[Limit] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


def _read_limit(part: str, page: Path) -> Limit:
    found = _LIMIT.fullmatch(part)
    columns = tuple(found["columns"].split(" and ")) if found else ()
    try:
        limits = tuple(map(float, found["limits"].split(" and "))) if found else ()
    except ValueError:
        limits = ()
    limits = limits * len(columns) if len(limits) == 1 else limits
    if not found or len(limits) != len(columns):
        raise ValueError(f"{page}: a check is {part!r}; write COLUMN within NUMBER, see papers/checks.py")
    return Limit(found["page"] or found["columns"], found["table"], columns, found["way"], limits)


def _blocks(page: Path) -> Iterator[tuple[str, list[str]]]:
    """The lines of a page in runs of one kind: "command", "table" or "text"."""
    kinds = {"    ": "command", "|": "table"}

    def kind(line: str) -> str:
        return next((kind for start, kind in kinds.items() if line.startswith(start)), "text")

    for name, lines in groupby(page.read_text(encoding="utf-8").splitlines(), kind):
        yield name, list(lines)


def read_claims(page: Path) -> Iterator[Claim]:
    """The claims of a page below commands, in order, checked or not."""
    commands, open_claims = list[str](), list[Claim]()
    for kind, lines in _blocks(page):
        if kind == "command":
            commands = re.sub(r"\\\n *", "", "\n".join(line.strip() for line in lines)).splitlines()
        elif kind == "table":
            for claim in open_claims:
                cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
                claim.columns, claim.rows = cells[0], cells[2:]
                yield claim
            open_claims = []
        for found in _COMMENT.finditer("\n".join(lines)):
            if not commands:
                raise ValueError(f"{page}: {found[0]} has no command above it")
            text = " ".join(found[2].split())
            if found[1] == "not checked":
                yield Claim(commands, text)
                continue
            claim = Claim(commands)
            for part in text.split("; "):
                if row := _ROW.fullmatch(part):
                    claim.renamed[row["page"]] = row["results"]
                else:
                    claim.limits.append(_read_limit(part, page))
            if any(limit.way == "at most" for limit in claim.limits):
                yield claim
            else:
                open_claims.append(claim)
    if open_claims:
        raise ValueError(f"{page}: a check has no table below it")


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def find_table(limit: Limit, tables: Tables) -> Sequence[Mapping[str, Any]] | None:
    """The table of the results with the columns of a limit."""
    exact = [title for title in tables if title == limit.table]
    titles = exact or [title for title in tables if limit.table is None or limit.table in title]
    return next((tables[t] for t in titles if tables[t] and {*limit.columns} <= tables[t][0].keys()), None)


def _compare(claim: Claim, limit: Limit, found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What differs in a column of the page, a line each."""
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for row in found:
        by_name.setdefault(_shown(next(iter(row.values()))), []).append(row)
    for cells in claim.rows:
        name, said = claim.renamed.get(cells[0], cells[0]), cells[claim.columns.index(limit.page)]
        if not by_name.get(name):
            yield f"the results have no row {name!r}, or fewer of them than the page"
            continue
        row, numbers = by_name[name].pop(0), [float(n.replace(",", "")) for n in _NUMBER.findall(said)]
        if said in ("", "-"):
            continue
        if len(numbers) != len(limit.columns):
            yield f"{cells[0]}: {limit.page} is {said!r} on the page; give {len(limit.columns)} numbers"
            continue
        for column, number, tolerance in zip(limit.columns, numbers, limit.limits, strict=True):
            value = float("nan") if row[column] is None else float(row[column])
            if not abs(value - number) <= tolerance:
                yield f"{cells[0]}: {column} is {value:g}, on the page {number:g} (within {tolerance:g})"


def differences(claim: Claim, tables: Tables) -> list[str]:
    """What of a claim the results do not confirm, a line each."""
    lines = []
    for limit in claim.limits:
        found = find_table(limit, tables)
        if found is None:
            where = "" if limit.table is None else f" in a table {limit.table!r}"
            lines.append(f"the results have no column {', '.join(map(repr, limit.columns))}{where}")
        elif limit.way == "within":
            lines += _compare(claim, limit, found)
        else:
            for column, bound in zip(limit.columns, limit.limits, strict=True):
                over = [row for row in found if not float(row[column]) <= bound]
                lines += [
                    f"{_shown(next(iter(row.values())))}: {column} is {row[column]}, over {bound:g}" for row in over
                ]
    return list(dict.fromkeys(lines))


def _results(command: str, output: Path) -> Tables:
    _, verb, *words = command.split()
    if verb == "evaluate":
        with redirect_stdout(StringIO()) as printed:
            evaluate.run([*words, "--json", "--out", str(output / "evaluation")], verb)
        models = json.loads(printed.getvalue())["models"]
        return {"": [{"weights": f"`{name}`", "test %": 100 * each["accuracy"]} for name, each in models.items()]}
    options = parse(ReproduceOptions, words, verb)
    return results_of(str(options.study).replace("-", "_"), given_options(options), output)


def check(names: Sequence[str]) -> int:
    """Check the claims of some papers, or of all; 1 if any differs or cannot be run."""
    for name in names:
        if name not in NAMES:
            raise unknown("paper", name, NAMES)
    failed = False
    for name in names or NAMES:
        results: dict[str, Tables] = {}
        for claim in read_claims(FOLDER / name / "claims.md"):
            shown, began = f"{name}: {'; '.join(claim.commands)}", time.process_time()
            if claim.reason:
                say(f"{shown}: not checked: {claim.reason}")
                continue
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
            say(f"{shown}: {verdict} ({time.process_time() - began:.0f} s of a processor)")
            for line in lines:
                say(f"    {line}")
    return int(failed)
