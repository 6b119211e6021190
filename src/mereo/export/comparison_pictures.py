"""Pictures of a comparison of networks."""

import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from mereo.export.rows import Row, ranked
from mereo.pictures import grid_of_panels, save_figure
from mereo.runtime.text import rounded

TITLE = 90
"""Characters of a line of a title."""
Curves = Mapping[str, Sequence[tuple[float, float]]]
"""(severity, accuracy) by the name of a corruption."""
AXES = {"rotation": "degrees", "translation": "% of the side", "occlusion": "% of the side covered"}
MANY, LONGEST_NAME = 8, 32
"""Networks from which on the panels of a comparison are three in a row and their bars thinner; letters of a
name there."""
NAMED = 5
"""The best networks under a corruption, which its panel names."""


def count(number: float) -> str:
    """A large number with a unit: 950, 344 k, 8.2 M, 1.3 G."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            shown = number / size
            return f"{shown:.0f} {unit}" if shown >= 100 else f"{shown:.1f} {unit}"
    return rounded(number)


def draw_comparison(rows: Sequence[Row], path: Path, title: str) -> None:
    """One panel per quantity, one bar per network, plain networks in grey, dots for the seeds."""
    from matplotlib.ticker import MaxNLocator

    rows = ranked(rows)
    metric, unit = rows[0].metric + (" in %" if rows[0].scale == 100 else ""), rows[0].unit
    quantities: list[tuple[str, list[float], Callable[[float], str]]] = [
        ("parameters", [row.parameters for row in rows], count),
        ("MACs of one input", [row.macs for row in rows], count),
        (f"inference, {unit}/s", [row.rate for row in rows], rounded),
        (f"training, {unit}/s", [row.train_rate for row in rows], rounded),
        ("training memory in MiB", [row.memory / 2**20 for row in rows], "{:,.0f}".format),
    ]
    # As wide as a page, so that the text stays readable on it.
    few = len(rows) < MANY
    across, height = (2, 0.28) if few else (3, 0.2)
    size = 6.6 / across, 1 + height * len(rows)
    figure, (grid,) = grid_of_panels(1 + len(quantities), across, size, (1.2, 0.4), sharey=True)
    figure.suptitle(textwrap.fill(title, TITLE), fontsize=10)
    for axes, (_, values, show) in zip(grid[1:], quantities, strict=True):
        axes.barh(range(len(rows)), values, color=_colours(rows), height=0.65, alpha=0.75)
        for place, value in enumerate(values):
            axes.text(value, place, f" {show(value)}", va="center", fontsize=8)
        axes.set_xlim(0, (1.25 if few else 1.4) * max(*values, 1e-9))
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(lambda amount, _: count(amount))
    _draw_metric(grid[0], rows)
    for axes, name in zip(grid, [f"test {metric}, mean and seeds", *(name for name, *_ in quantities)], strict=True):
        axes.set_title(name, fontsize=9)
        axes.set_yticks(range(len(rows)), [_on_lines(row.model, few) for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.tick_params(labelsize=7.5)
        axes.grid(axis="x", alpha=0.3)
    save_figure(figure, path)


def _on_lines(name: str, room: bool) -> str:
    """A network's name with its arguments on a line of their own, or, without room for one, shortened."""
    if room:
        return name.replace(":", ":\n")
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME // 2]}…{name[-LONGEST_NAME // 2 + 1 :]}"


def _colours(rows: Sequence[Row]) -> list[str]:
    return ["0.6" if row.plain else "C0" for row in rows]


def _draw_metric(axes: Any, rows: Sequence[Row]) -> None:
    """The mean with the spread as a whisker, a dot a seed; no bars, for the axis does not begin at 0."""
    every, scale = [], rows[0].scale
    for place, (row, colour) in enumerate(zip(rows, _colours(rows), strict=True)):
        mean, spread = scale * row.value, scale * (row.spread or 0.0)
        ends = [mean - spread, mean + spread, *(scale * value for value in row.values)]
        every += ends
        axes.errorbar(mean, place, xerr=spread, fmt="D", color=colour, markersize=7, capsize=4)
        if len(row.values) > 1:
            axes.plot([scale * v for v in row.values], [place + 0.22] * len(row.values), "k.", markersize=5, alpha=0.6)
        shown = row.shown(row.value) + (f" ± {row.shown(row.spread)}" if row.spread is not None else "")
        if len(rows) < MANY:
            axes.text(mean, place - 0.2, shown, ha="center", fontsize=8)
        else:
            axes.annotate(
                shown, (min(ends), place), (-5, 0), textcoords="offset points", ha="right", va="center", fontsize=8
            )
    least = 1.0 if scale == 100 else 0.01 * max(map(abs, every)) or 1.0
    room = max(max(every) - min(every), least)
    left = 0.3 if len(rows) < MANY else 1.0
    axes.set_xlim(min(every) - left * room, max(every) + 0.3 * room)


def draw_curves(rows: Sequence[Row], curves: Mapping[str, Curves], path: Path) -> None:
    """One panel for each corruption, one line a network, plain networks black and dashed.

    The legend below the panels names the plain networks and, for each corruption, the networks of the highest mean
    accuracy; the lines of the others are grey.
    """
    names = list(next(iter(curves.values())))
    best = {label for name in names for label in _best(curves, name)}
    styles = _line_styles(rows, best)
    figure, (panels,) = grid_of_panels(len(names), 2, (3.9, 3.4), (0, 0.2 + 0.1 * len(styles)), sharey=True)
    for axes, name in zip(panels, names, strict=True):
        for row in ranked(rows):
            severities, values = zip(*curves[row.model][name], strict=True)
            style = styles.get(row.model, {"color": "0.8", "linewidth": 0.9, "zorder": 1})
            axes.plot(severities, [100 * value for value in values], **style)
        axes.set_title(f"accuracy under {name}", fontsize=10)
        axes.set_xlabel(AXES.get(name, "severity"), fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        if axes.get_subplotspec().is_first_col():
            axes.set_ylabel("test accuracy in %", fontsize=9)
    lines = {line.get_label(): line for line in panels[0].lines if line.get_label() in styles}
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=2, fontsize=8)
    save_figure(figure, path)


def _best(curves: Mapping[str, Curves], name: str) -> list[str]:
    """The networks of the highest mean accuracy under a corruption."""
    return sorted(curves, key=lambda label: -sum(value for _, value in curves[label][name][1:]))[:NAMED]


def _line_styles(rows: Sequence[Row], best: Collection[str]) -> dict[str, dict[str, Any]]:
    """How the lines of plain networks and of the best ones are drawn, by network, in the order of the table."""
    styles: dict[str, dict[str, Any]] = {}
    plain = [row.model for row in rows if row.plain]
    for row in ranked(rows):
        if row.plain:
            dashes = ("--", "-.", ":")[plain.index(row.model) % 3]
            styles[row.model] = {"label": row.model, "color": "black", "linestyle": dashes, "linewidth": 1.8}
        elif row.model in best:
            colour = f"C{len(styles) % 10}"
            styles[row.model] = {"label": row.model, "color": colour, "linewidth": 1.3}
    return styles
