"""A run as tables, for the terminal and as Markdown: its cases, growth along sizes, and ratios to an earlier run."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import linear_regression

from mereo.bench.machine import IDENTITY
from mereo.bench.results import Measurement, Run, read_run
from mereo.bench.suite import Table
from mereo.errors import UsageError

MIB = 2**20
CONDITIONS = ("torch", "python", "mereo", "commit", "cpu_capability", "float32_matmul_precision", "variables")
"""Facts that may differ; the table notes the differences."""


def milliseconds(seconds: float) -> str:
    """A time in milliseconds, without its unit."""
    return three_digits(1e3 * seconds)


def three_digits(value: float) -> str:
    """Three significant digits, and all of a large whole number."""
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


def _error(value: float | None) -> str:
    return "-" if value is None else "0" if value == 0 else f"{value:.0e}"


def _mebibytes(m: Measurement) -> str:
    if m.resident is None and m.allocator is None:
        return m.memory_note or "-"
    return " / ".join(three_digits(v / MIB) for v in (m.resident, m.allocator) if v is not None)


def _two(form: str, by_wall: float, by_cpu: float | None) -> str:
    """A ratio by wall time, and the same by CPU time if that measures the work."""
    shown = _percent if form == "share" else "{:.2f}x".format
    return shown(by_wall) if by_cpu is None else f"{shown(by_wall)} ({shown(by_cpu)})"


def share_of(seconds: float, m: Measurement, *, on_device: bool = False) -> str:
    """A least time over the time taken; by CPU time the threads together have `threads` times as long."""
    assert m.wall is not None
    cpu = None if on_device or m.cpu is None or not m.cpu.median else seconds * m.threads / m.cpu.median
    return _two("share", seconds / m.wall.median, cpu)


def versus(m: Measurement, reference: Measurement | None, *, on_device: bool = False) -> str:
    """How much faster than the reference, by wall and by CPU time; only for contenders that compute the same."""
    if m.status != "ok":
        return m.status
    if m.contender == m.reference:
        return "1"
    if m.wall is None or reference is None or reference.wall is None:
        return "-"
    wall, cpu = reference.wall.median / m.wall.median, None
    # On an accelerator the CPU only launches kernels, so its time does not measure the work.
    if not on_device and m.cpu is not None and reference.cpu is not None and m.cpu.median and reference.cpu.median:
        cpu = reference.cpu.median / m.cpu.median
    if m.role == "part":
        return _two("share", 1 / wall, cpu and 1 / cpu) + " of it"
    return _two("speed", wall, cpu)


def roofline(group: list[Measurement], run: Run) -> str:
    """The bound of a case: work counted from the sizes over rates measured in the same run."""
    counted = next((m for m in group if m.bound is not None), None)
    if counted is None or counted.flops is None or counted.bytes is None or counted.bound is None:
        return ""
    rates = run.probes[str(counted.threads)]
    return (
        f"roofline: at least {counted.flops / 1e9:.3g} GFLOP (matrix product {rates['matmul'] / 1e9:.3g} GFLOP/s) and"
        f" {counted.bytes / 1e6:.3g} MB (copy {rates['copy'] / 1e9:.3g} GB/s): {milliseconds(counted.bound)} ms, set by"
        f" its {counted.bound_by}"
    )


def case_table(group: list[Measurement], run: Run) -> Table:
    """All contenders of a case in one mode."""
    first = group[0]
    reference = run.find(first.case, first.mode, first.reference)
    batch = first.sizes.get("batch")
    columns, against = ["contender"], f"vs {first.reference} (CPU)"
    on_device = run.machine["device"] != "cpu"
    timed = any(m.wall for m in group)
    bounded, own = any(m.bound for m in group), any(m.own_bound for m in group)
    if timed:
        columns += ["wall ms (quartiles)", "CPU ms", "rounds"]
        columns += ["a second"] if batch else []
        columns += [against] if len(group) > 1 else []
    else:
        columns += ["status"]
    columns += ["error"] if any(m.output_error is not None for m in group) else []
    columns += ["gradient error"] if any(m.gradient_error is not None for m in group) else []
    columns += ["of bound (CPU)", "GFLOP/s"] if bounded and timed else []
    columns += ["of own bound (CPU)"] if own and timed else []
    columns += ["first call s"] if timed else []
    columns += ["peak MiB", "process MiB"] if any(m.resident is not None or m.memory_note for m in group) else []
    columns += ["note"] if any(m.note for m in group) else []
    rows = []
    for m in group:
        cells = {against: versus(m, reference, on_device=on_device), **_cells(m, batch, on_device=on_device)}
        rows.append(tuple(cells.get(column, "-") for column in columns))
    line = roofline(group, run)
    return Table(f"{run.suite} {first.case}, {first.mode}", tuple(columns), tuple(rows), (line,) if line else ())


def _cells(m: Measurement, batch: object, *, on_device: bool) -> dict[str, str]:
    """The cells of a measurement by column; `batch` is the number of its entries, if it has one."""
    cells = {"contender": m.contender, "status": m.status}
    if m.wall is not None and m.cpu is not None:
        spread = f"{milliseconds(m.wall.low)}-{milliseconds(m.wall.high)}"
        cells |= {"wall ms (quartiles)": f"{milliseconds(m.wall.median)} ({spread})", "rounds": str(m.wall.count)}
        cells |= {"CPU ms": milliseconds(m.cpu.median)}
        if isinstance(batch, int):
            cells["a second"] = f"{batch / m.wall.median:,.0f}"
        if m.bound is not None and m.flops is not None:
            cells["of bound (CPU)"] = share_of(m.bound, m, on_device=on_device)
            cells["GFLOP/s"] = f"{m.flops / m.wall.median / 1e9:.3g}"
        if m.own_bound is not None:
            cells["of own bound (CPU)"] = share_of(m.own_bound, m, on_device=on_device)
    if m.first is not None:
        cells["first call s"] = f"{m.first:.2f}"
    cells |= {"error": _error(m.output_error), "gradient error": _error(m.gradient_error)}
    cells |= {"peak MiB": _mebibytes(m), "note": m.note}
    cells |= {"process MiB": "-" if m.process is None else f"{m.process / MIB:,.0f}"}
    return cells


def exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """The slope of log y over log x by least squares; None for fewer than two sizes."""
    if len({x for x, _ in points}) < 2:
        return None
    return linear_regression(*zip(*((math.log(x), math.log(y)) for x, y in points), strict=True)).slope


def _row(name: str, line: list[Measurement], swept: str) -> tuple[str, ...] | None:
    times = [(float(m.sizes[swept]), m.wall.median) for m in line if m.wall is not None]
    peaks = [(float(m.sizes[swept]), float(m.resident)) for m in line if m.resident]
    exponents = [exponent(times), exponent(peaks)]
    if exponents == [None, None]:
        return None
    each = [1e6 * seconds / size for size, seconds in times]
    spans = [f"{min(each):.3g}", f"{max(each):.3g}", f"{max(each) / min(each):.2f}"] if each else ["-"] * 3
    return name, *("-" if power is None else f"{power:.2f}" for power in exponents), *spans


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
                one = {"children": "child", "classes": "class"}.get(swept, swept.removesuffix("s"))
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


def tables_of(run: Run) -> list[Table]:
    """All tables of a run."""
    tables = [case_table(group, run) for group in run.groups()]
    for table in run.tables:
        rows = tuple(tuple(row) for row in table["rows"])
        tables.append(Table(table["title"], tuple(table["columns"]), rows, tuple(table["notes"])))
    return tables


def heading(run: Run) -> list[str]:
    """The machine and the conditions of a run, in lines."""
    machine = run.machine
    variables = " ".join(f"{k}={v}" for k, v in machine["variables"].items())
    on = "" if machine["device"] == "cpu" else f", {machine['device']}"
    lines = [
        f"{machine['processor']}, {machine['cores']} cores{on}; {machine['cpu_capability']}; {machine['system']}",
        f"python {machine['python']}, torch {machine['torch']}, mereo {machine['mereo']}"
        + (f" at {machine['commit']}" if machine["commit"] else ""),
    ]
    lines += [variables] if variables else []
    if machine["load"]:
        lines.append(f"load when it began: {machine['load'][0]:.1f}")
    lines += [
        f"{threads} thread{'s' if threads != '1' else ''}: matrix product {r['matmul'] / 1e9:.3g} GFLOP/s,"
        f" copy {r['copy'] / 1e9:.3g} GB/s"
        for threads, r in run.probes.items()
    ]
    return lines + [f"skipped: {reason}" for reason in run.skipped]


LEGEND = (
    "Medians and quartiles of interleaved rounds; CPU time is summed over threads; numbers from it are in brackets."
    " Errors are the largest relative"
    " difference to the reference; a contender above {tolerance:g} is WRONG and has no speed-up. The bound is the"
    " task's; an implementation that must move more data has its own bound; a share above 100 % shows that the"
    " probes of"
    " the machine were disturbed. Peak memory is resident memory above inputs and weights, in a separate process (a"
    " second figure is PyTorch's allocator on an accelerator); the next column is the whole process with libraries."
)


def markdown(run: Run, picture: str | None, more: list[Table]) -> str:
    """The report."""
    parts = [f"# mereo bench {run.suite}", run.created + ("" if run.finished else " (stopped before its end)")]
    parts.append("\n".join(f"- {line}" for line in heading(run)))
    parts.append(LEGEND.format(tolerance=run.tolerance))
    if picture:
        parts.append(f"![{run.suite}]({picture})")
    for table in [*tables_of(run), *more]:
        rows = [table.columns, ("---",) * len(table.columns), *table.rows]
        body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
        parts += [f"## {table.title}", *table.notes, body]
    return "\n\n".join(parts) + "\n"


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
    """A table of the cases that both runs measured: time then over time now, memory now over memory then."""
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
