"""Compares a run with an earlier one on the same machine: ratios of medians."""

from pathlib import Path

from mereo.bench.case import Table
from mereo.bench.machine import IDENTITY
from mereo.bench.results import Measurement, Run, read_run
from mereo.errors import UsageError

CONDITIONS = ("torch", "python", "mereo", "commit", "cpu_capability", "float32_matmul_precision", "variables")
"""Facts that may differ; the table notes the differences."""


def read_comparable(path: Path, run: Run) -> Run:
    """The earlier run; UsageError if it is of another suite or another machine."""
    earlier = read_run(path)
    if earlier.suite != run.suite:
        raise UsageError(f"against is {str(path)!r}, of suite {earlier.suite!r}; this is {run.suite!r}.")
    for fact in IDENTITY:
        before, now = earlier.machine.get(fact), run.machine.get(fact)
        if before != now:
            raise UsageError(
                f"against is {str(path)!r}, measured on another machine: its {fact} is {before!r}, here it is {now!r}."
                " Times of different machines are not comparable; measure both on one."
            )
    return earlier


def verdict(now: Measurement, before: Measurement) -> str:
    """Whether the quartiles do not overlap."""
    if now.wall is None or before.wall is None:
        return "-"
    if now.status == "WRONG":
        return "WRONG"
    if now.wall.high < before.wall.low:
        return "faster"
    return "slower" if now.wall.low > before.wall.high else "within the spread"


def comparison(run: Run, earlier: Run) -> Table:
    """A table of what both runs measured: time then over time now, memory now over memory then."""
    notes = [f"against the run of {earlier.created}"]
    for fact in CONDITIONS:
        before, now = earlier.machine.get(fact), run.machine.get(fact)
        if before != now:
            notes.append(f"{fact} differs: {before} then, {now} now")
    for count, rates in run.probes.items():
        if count in earlier.probes:
            matmul, copy = (rates[k] / earlier.probes[count][k] for k in ("matmul", "copy"))
            notes.append(
                f"{count} threads: the machine multiplies at {matmul:.2f} and copies at {copy:.2f} of its earlier rate"
            )
    rows: list[tuple[str, ...]] = []
    for now in run.measurements:
        before = earlier.find(*now.key)
        if before is None:
            continue
        if before.sizes != now.sizes:
            rows.append((now.case, now.mode, now.contender, "-", "-", "-", "-", "other sizes"))
            continue
        times = [f"{1e3 * m.wall.median:.4g}" if m.wall else "-" for m in (before, now)]
        both = before.wall and now.wall and now.status != "WRONG"
        speed = f"{before.wall.median / now.wall.median:.2f}x" if both and before.wall and now.wall else "-"
        memory = f"{now.resident / before.resident:.2f}" if now.resident and before.resident else "-"
        rows.append((now.case, now.mode, now.contender, *times, speed, memory, verdict(now, before)))
    if not rows:
        notes.append("the two runs have no measurement in common")
    columns = ("case", "mode", "contender", "then ms", "now ms", "speed now", "peak now / then", "verdict")
    return Table(f"{run.suite}, then and now", columns, tuple(rows), tuple(notes))
