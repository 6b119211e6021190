"""How time and memory grow with a size: the exponent of a power, fitted to what was measured."""

import math
from collections.abc import Sequence

from mereo.bench.case import Table
from mereo.bench.results import Measurement, Run


def exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """The slope of log y over log x by least squares; None for fewer than two sizes."""
    if len({x for x, _ in points}) < 2:
        return None
    logs = [(math.log(x), math.log(y)) for x, y in points]
    mean_x, mean_y = (sum(values) / len(logs) for values in zip(*logs, strict=True))
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)


def _row(name: str, line: list[Measurement], swept: str) -> tuple[str, ...] | None:
    times = [(float(m.sizes[swept]), m.wall.median) for m in line if m.wall is not None]
    peaks = [(float(m.sizes[swept]), float(m.resident)) for m in line if m.resident]
    of_time, of_memory = exponent(times), exponent(peaks)
    if of_time is None:
        return None
    each = [1e6 * seconds / size for size, seconds in times]
    shown = f"{of_memory:.2f}" if of_memory is not None else "-"
    return name, f"{of_time:.2f}", shown, f"{min(each):.3g}", f"{max(each):.3g}", f"{max(each) / min(each):.2f}"


def growth_tables(run: Run) -> list[Table]:
    """For each size that the suite names, mode and number of threads: the exponents of every contender."""
    tables = []
    for swept in run.options.get("growth", ()):
        here = [m for m in run.measurements if m.axis == swept]
        for mode, threads in dict.fromkeys((m.mode, m.threads) for m in here):
            group = [m for m in here if (m.mode, m.threads) == (mode, threads)]
            names = dict.fromkeys(m.contender for m in group)
            rows = [_row(name, [m for m in group if m.contender == name], swept) for name in names]
            if kept := tuple(row for row in rows if row is not None):
                one = swept.removesuffix("s")
                columns: tuple[str, ...] = (
                    "contender",
                    "time",
                    "memory",
                    f"least us a {one}",
                    f"most us a {one}",
                    "most / least",
                )
                if theory := run.options.get("theory"):
                    columns = (*columns, "time in theory")
                    kept = tuple((*row, f"{theory[row[0]]:.2f}" if row[0] in theory else "-") for row in kept)
                tables.append(Table(f"Exponents of {swept}, {mode}, {threads} threads", columns, kept))
    return tables
