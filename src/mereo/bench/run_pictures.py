"""A run as a picture: time and memory of every contender along the sizes that were swept."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mereo.bench.results import Measurement, Run
from mereo.bench.tables import MIB, heading
from mereo.pictures import grid_of_panels, plain_log, save_figure
from mereo.runtime.text import gibibytes

COLOURS = ("#6b6b6b", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#4b3f9e", "#a0522d", "#111111")
"""Colours of contenders in order of appearance; the reference is grey."""
MARKERS = ("o", "^", "s")
"""Markers of lines; the next one is used when all colours are."""
ACROSS = 2
"""Panels next to each other: with more, their text is too small at the width of a page."""
LEAST_WIDTH = 6.5
"""Least width of a picture in inches, for its title."""


def _wall(m: Measurement) -> float | None:
    return None if m.wall is None else 1e3 * m.wall.median


def _peak(m: Measurement) -> float | None:
    peak = m.resident if m.allocator is None else m.allocator
    return peak / MIB if peak else None


class _Panel(NamedTuple):
    """One quantity in one mode: the value to plot of each measurement, and its unit."""

    title: str
    unit: str
    quantity: Callable[[Measurement], float | None]
    measurements: list[Measurement]


def _panels(run: Run) -> list[_Panel]:
    modes = dict.fromkeys(m.mode for m in run.measurements)
    panels = [
        _Panel(f"{mode}, {name}", unit, quantity, [m for m in run.measurements if m.mode == mode])
        for name, unit, quantity in (("wall time", "ms", _wall), ("peak memory", "MiB", _peak))
        for mode in modes
    ]
    return [panel for panel in panels if any(map(panel.quantity, panel.measurements))]


def _grid(count: int, width: float, height: float, **given: Any) -> tuple[Any, list[list[Any]]]:
    """A figure with panels of that size, `ACROSS` in a row, and room for its title."""
    room = max(1.2, LEAST_WIDTH - width * min(count, ACROSS))
    return grid_of_panels(count, ACROSS, (width, height), (room, 1.3), **given)


def _style(run: Run, m: Measurement) -> dict[str, Any]:
    """Colour of a contender, and marker once all colours are used."""
    place = list(dict.fromkeys(each.contender for each in run.measurements)).index(m.contender)
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place // len(COLOURS) % len(MARKERS)]}


def _line(axes: Any, run: Run, panel: _Panel, size: str, line: list[Measurement], label: str) -> None:
    """One contender along a size, with its quartiles; crosses where it no longer fits in the limit."""
    points = [(m.sizes[size], value) for m in line if (value := panel.quantity(m))]
    style = _style(run, line[0])
    axes.plot([x for x, _ in points], [y for _, y in points], markersize=4, linewidth=1.6, label=label, **style)
    if panel.quantity is _wall:
        spread = [(m.sizes[size], 1e3 * m.wall.low, 1e3 * m.wall.high) for m in line if m.wall]
        axes.fill_between(*zip(*spread, strict=True), color=style["color"], alpha=0.15, linewidth=0)
    elif limit := run.options.get("limit"):
        lost = [m.sizes[size] for m in line if "fit" in m.memory_note]
        axes.plot(lost, [limit / MIB] * len(lost), "x", color=style["color"], markersize=7)


def _lines(run: Run, panels: list[_Panel], swept: list[str]) -> Any:
    """A block for each swept size, a panel for each quantity, a line for each contender; black is the least time."""
    figure, grid = _grid(len(panels), 3.4, 2.7, blocks=len(swept))
    named: dict[str, Any] = {}
    for size, row in zip(swept, grid, strict=True):
        for axes, panel in zip(row, panels, strict=True):
            here = [m for m in panel.measurements if m.axis == size]
            lines: dict[tuple[str, int], list[Measurement]] = {}
            for m in here:
                lines.setdefault((m.contender, m.threads), []).append(m)
            several = len({threads for _, threads in lines}) > 1
            for (contender, threads), line in lines.items():
                wrong = " WRONG" if any(m.status == "WRONG" for m in line) else ""
                label = f"{contender}{f', {threads} threads' if several else ''}{wrong}"
                if any(map(panel.quantity, line)):
                    _line(axes, run, panel, size, line, label)
            least = sorted((m.sizes[size], 1e3 * m.bound) for m in here if m.bound)
            if panel.quantity is _wall:
                axes.plot([x for x, _ in least], [y for _, y in least], color="black", linewidth=1)
            elif limit := run.options.get("limit"):
                axes.axhline(
                    limit / MIB, color="#8a8a8a", linewidth=1, linestyle=":", label=f"limit {gibibytes(limit)}"
                )
            axes.set(xscale="log", yscale="log")
            plain_log(axes.yaxis)
            values = sorted({int(m.sizes[size]) for m in here})
            axes.set_xticks(values, [f"{value:,}" for value in values])
            axes.minorticks_off()
            axes.set_xlabel(size, fontsize=8)
            axes.set_ylabel(panel.unit, fontsize=8)
            handles, labels = axes.get_legend_handles_labels()
            named |= dict(zip(labels, handles, strict=True))
    columns = max(int(figure.get_figwidth() / (0.6 + 0.07 * max(map(len, named)))), 1)
    figure.set_figheight(figure.get_figheight() + 0.17 * -(-len(named) // columns))
    figure.legend(named.values(), named, loc="outside lower center", ncols=columns, fontsize=7, frameon=False)
    return figure, [axes for row in grid for axes in row]


def draw(run: Run, path: Path) -> bool:
    """Write the picture; False if nothing was measured, or at one size only."""
    panels = _panels(run)
    sizes: dict[str, set[int]] = {}
    for m in run.measurements:
        if m.axis and isinstance(m.sizes[m.axis], int):
            sizes.setdefault(m.axis, set()).add(m.sizes[m.axis])
    swept = [axis for axis, values in sizes.items() if len(values) > 1]
    if not panels or not swept:
        return False
    figure, every = _lines(run, panels, swept)
    for axes, panel in zip(every, panels * len(swept), strict=True):
        axes.set_title(panel.title, fontsize=9, loc="left")
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.set_axisbelow(True)
    title = f"mereo bench {run.suite}\n{heading(run)[0]}; torch {run.machine['torch']}"
    if any(m.bound and m.wall for m in run.measurements):
        title += "\nblack: the least time that the sizes allow on this machine"
    figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    save_figure(figure, path)
    return True
