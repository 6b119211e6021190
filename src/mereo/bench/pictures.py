"""A run as a picture: bars of time and memory by contender, or lines along what was swept."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mereo.bench.growth import exponent
from mereo.bench.report import heading, milliseconds, three_digits, versus
from mereo.bench.results import Measurement, Run
from mereo.pictures import grid_of_panels, plain_log, save_figure
from mereo.runtime.text import gibibytes

COLOURS = ("#6b6b6b", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#4b3f9e", "#a0522d", "#111111")
"""Colours of contenders in order of appearance; the reference is grey."""
MARKERS = ("o", "^", "s")
"""Markers of lines; the next one is used when all colours are."""
MOST_INSIDE = 6
"""Most contenders for which a panel has room for the legend and for the exponents of lines."""
INK, FAINT, WRONG = "#222222", "#8a8a8a", "#c4161c"
ACROSS = 2
"""Panels next to each other: with more, their text is too small at the width of a page."""
LEAST_WIDTH = 6.5
"""Least width of a picture in inches, for its title."""
WIDE = 30
"""Largest over smallest above which a panel is logarithmic."""
MIB = 2**20

Quantity = Callable[[Measurement], float | None]


class _Panel(NamedTuple):
    """One quantity in one mode, as an axis of the picture."""

    title: str
    mode: str
    quantity: Quantity
    unit: str


def _wall(m: Measurement) -> float | None:
    return None if m.wall is None else 1e3 * m.wall.median


def _peak(m: Measurement) -> float | None:
    bytes_ = m.resident if m.allocator is None else m.allocator
    return bytes_ / MIB if bytes_ else None


def _end(m: Measurement, quantity: Quantity) -> float:
    """Where the bar and its whisker end."""
    high = 1e3 * m.wall.high if quantity is _wall and m.wall is not None else 0.0
    return max(quantity(m) or 0.0, high)


def _panels(run: Run) -> list[_Panel]:
    """Every panel with results."""
    modes = list(dict.fromkeys(m.mode for m in run.measurements))
    panels: list[_Panel] = []
    for quantity, name, unit in ((_wall, "wall time", "ms"), (_peak, "peak memory", "MiB")):
        shown = [mode for mode in modes if any(quantity(m) for m in run.measurements if m.mode == mode)]
        panels += [_Panel(f"{mode}, {name}", mode, quantity, unit) for mode in shown]
    return panels


def _colours(run: Run) -> dict[str, str]:
    names = dict.fromkeys(m.contender for m in run.measurements)
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}


def _finish(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=9, color=INK, loc="left")
    axes.tick_params(labelsize=8, colors=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="both" if axes.get_yscale() == "log" else "x", alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)


def _text(m: Measurement, quantity: Quantity, reference: Measurement | None) -> str:
    value = quantity(m)
    if value is None:
        return m.memory_note if quantity is _peak else m.status
    if quantity is _peak:
        return three_digits(value)
    text = milliseconds(value / 1e3)
    return text if m.contender == m.reference else f"{text}  {versus(m, reference)}"


def _grid(count: int, width: float, height: float, **given: Any) -> tuple[Any, list[list[Any]]]:
    """A figure with panels of that size, `ACROSS` in a row, and room for its title."""
    room = max(1.2, LEAST_WIDTH - width * min(count, ACROSS))
    return grid_of_panels(count, ACROSS, (width, height), (room, 1.3), **given)


def _bars(run: Run, panels: list[_Panel]) -> Any:
    """A row a contender, a block a case, a panel a quantity; the black line is the least time."""
    places: list[tuple[str, str]] = []
    for case in dict.fromkeys(m.case for m in run.measurements):
        places.append((case, ""))
        places += [(case, c) for c in dict.fromkeys(m.contender for m in run.measurements if m.case == case)]
    figure, (every,) = _grid(len(panels), 3.1, 0.25 * len(places), sharey=True)
    for axes, panel in zip(every, panels, strict=True):
        found = [(y, run.find(case, panel.mode, c)) for y, (case, c) in enumerate(places) if c]
        _draw_bars(axes, run, panel, [(y, m) for y, m in found if m is not None])
    every[0].set_yticks(range(len(places)), [c or case for case, c in places])
    for label, (_, contender) in zip(every[0].get_yticklabels(), places, strict=True):
        label.set_fontweight("normal" if contender else "bold")
    every[0].set_ylim(len(places) - 0.4, -0.6)
    return figure


def _draw_bars(axes: Any, run: Run, panel: _Panel, here: list[tuple[int, Measurement]]) -> None:
    """A column of bars; `here` are measurements with their rows."""
    quantity, colours = panel.quantity, _colours(run)
    values = [v for _, m in here if (v := quantity(m))]
    log = max(values) / min(values) > WIDE
    bounds = [1e3 * m.bound for _, m in here if m.bound and quantity is _wall]
    left = min(values + bounds) / 2 if log else 0.0
    for y, m in here:
        value, wrong = quantity(m), m.status == "WRONG"
        if value is not None:
            strength = 0.4 if wrong else 0.9
            axes.barh(y, value - left, left=left, height=0.7, color=colours[m.contender], alpha=strength)
            if quantity is _wall and m.wall is not None:
                axes.plot([1e3 * m.wall.low, 1e3 * m.wall.high], [y, y], color=INK, linewidth=1.2)
                if m.bound:
                    axes.plot([1e3 * m.bound] * 2, [y - 0.4, y + 0.4], color="black", linewidth=1.6)
        text = _text(m, quantity, run.find(m.case, m.mode, m.reference))
        axes.annotate(
            f"  {text}", (left if value is None else _end(m, quantity), y), va="center", fontsize=7,
            color=WRONG if wrong else INK if value is not None else FAINT,
        )  # fmt: skip
    if log:
        axes.set_xscale("log")
    axes.set_xlim(left, max(_end(m, quantity) for _, m in here) * (12 if log else 1.5))
    axes.set_xlabel(panel.unit, fontsize=8)
    _finish(axes, panel.title)
    axes.tick_params(axis="y", length=0)


def _shows_exponents(run: Run, swept: str) -> bool:
    return swept in run.options.get("growth", ()) and len(_colours(run)) <= MOST_INSIDE


def _lines(run: Run, panels: list[_Panel], axes_swept: list[str]) -> Any:
    """A block a size that was swept, a panel a quantity, a line a contender; a cross is where it no longer fits."""
    figure, grid = _grid(len(panels), 3.4, 2.7, blocks=len(axes_swept))
    for swept, row in zip(axes_swept, grid, strict=True):
        for axes, panel in zip(row, panels, strict=True):
            _draw_lines(axes, run, panel, swept)
    # A contender may be in some of the panels only.
    pairs = [pair for row in grid for axes in row for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    named = {label: handle for handle, label in reversed(pairs)}
    handles, labels = list(reversed(named.values())), list(reversed(named))
    if len(_colours(run)) <= MOST_INSIDE:
        grid[0][0].legend(handles, labels, fontsize=7, framealpha=0.8, edgecolor="none")
    else:
        columns = max(int(figure.get_figwidth() / (0.5 + 0.07 * max(map(len, labels)))), 1)
        figure.set_figheight(figure.get_figheight() + 0.17 * -(-len(labels) // columns))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=7, frameon=False)
    return figure


def _draw_lines(axes: Any, run: Run, panel: _Panel, swept: str) -> None:
    """A panel of lines along a size that was swept."""
    here = [m for m in run.measurements if m.axis == swept and m.mode == panel.mode]
    counts, limit = list(dict.fromkeys(m.threads for m in run.measurements)), run.options.get("limit")
    for name in dict.fromkeys(m.contender for m in here):
        for count in counts:
            _draw_line(axes, run, panel, swept, [m for m in here if m.contender == name and m.threads == count])
    if panel.quantity is _peak and limit:
        axes.axhline(limit / MIB, color=FAINT, linewidth=1, linestyle=":")
        axes.annotate(f"limit {gibibytes(limit)}", (0.01, limit / MIB), fontsize=7, color=FAINT,
                      xycoords=("axes fraction", "data"), va="bottom")  # fmt: skip
    if panel.quantity is _wall:
        for count in counts:
            least = {m.sizes[swept]: 1e3 * m.bound for m in here if m.bound and m.threads == count}
            axes.plot(list(least), list(least.values()), color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    plain_log(axes.yaxis)
    values = sorted({int(m.sizes[swept]) for m in here})
    axes.set_xticks(values, [f"{v:,}" for v in values])
    axes.minorticks_off()
    axes.set_xlabel(swept, fontsize=8)
    axes.set_ylabel(panel.unit, fontsize=8)
    _finish(axes, panel.title)


def _draw_line(axes: Any, run: Run, panel: _Panel, swept: str, line: list[Measurement]) -> None:
    """The line of one contender on one number of threads, with its spread, exponent and lost sizes."""
    if not line:
        return
    name, quantity, limit = line[0].contender, panel.quantity, run.options.get("limit")
    colours, counts = _colours(run), list(dict.fromkeys(m.threads for m in run.measurements))
    colour, nth = colours[name], list(colours).index(name)
    points = [(m.sizes[swept], v) for m in line if (v := quantity(m))]
    wrong = any(m.status == "WRONG" for m in line)
    threads = f", {line[0].threads} threads" if len(counts) > 1 else ""
    if quantity is _wall:
        spread = [(m.sizes[swept], 1e3 * m.wall.low, 1e3 * m.wall.high) for m in line if m.wall]
        if spread:
            axes.fill_between(*zip(*spread, strict=True), color=colour, alpha=0.15, linewidth=0)
    axes.plot(
        *(zip(*points, strict=True) if points else ([], [])),
        ":" if wrong else ("-", "--", "-.")[counts.index(line[0].threads) % 3],
        marker=MARKERS[nth // len(COLOURS) % len(MARKERS)], markersize=4, color=colour, linewidth=1.6,
        label=name + threads + (" WRONG" if wrong else ""),
    )  # fmt: skip
    if _shows_exponents(run, swept) and (power := exponent(points)) is not None:
        axes.annotate(
            f"{power:.2f}", points[-1], fontsize=7, color=colour, xytext=(4, 0), textcoords="offset points", va="center"
        )
    lost = [m.sizes[swept] for m in line if quantity is _peak and "fit" in m.memory_note]
    if lost and limit:
        axes.plot(lost, [limit / MIB] * len(lost), "x", color=colour, markersize=7)


def draw(run: Run, path: Path) -> bool:
    """Write the picture; False where there is nothing to show."""
    panels = _panels(run)
    if not panels:
        return False
    values: dict[str, set[object]] = {}
    for m in run.measurements:
        if m.axis and isinstance(m.sizes[m.axis], int):
            values.setdefault(m.axis, set()).add(m.sizes[m.axis])
    swept = [axis for axis, seen in values.items() if len(seen) > 1]
    figure = _lines(run, panels, swept) if swept else _bars(run, panels)
    title = f"mereo bench {run.suite}\n{heading(run)[0]}; torch {run.machine['torch']}"
    if any(m.bound and m.wall for m in run.measurements):
        title += "\nblack: the least time that the sizes allow on this machine"
    if any(_shows_exponents(run, axis) for axis in swept):
        title += "\nnumbers at the ends of lines: fitted exponents"
    figure.suptitle(title, fontsize=9, color=INK, x=0.01, ha="left")
    save_figure(figure, path)
    return True
