"""Pictures of a comparison of networks."""

import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from mereo.export.rows import Row, ranked
from mereo.pictures import grid_of_panels, new_figure, save_figure
from mereo.runtime.text import rounded

TITLE = 90
"""Characters of a line of a title."""
Curves = Mapping[str, Sequence[tuple[float, float]]]
"""(severity, accuracy) by the name of a corruption."""
AXES = {"rotation": "degrees", "translation": "% of the side", "occlusion": "% of the side covered"}
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
    """One panel per quantity, one bar per network, dots for the seeds."""
    from matplotlib.ticker import MaxNLocator

    rows = ranked(rows)
    metric = rows[0].metric + (" in %" if rows[0].scale == 100 else "")
    panels: list[tuple[str, Callable[[Row], float], Callable[[float], str]]] = [
        (f"test {metric}, mean and seeds", lambda row: row.value, str),
        ("parameters", lambda row: row.parameters, count),
        ("multiply-adds (MACs) of one image", lambda row: row.macs, count),
        ("inference, images/s", lambda row: row.rate, rounded),
        ("training, images/s", lambda row: row.train_rate, rounded),
        ("training memory in MiB", lambda row: row.memory / 2**20, lambda v: f"{v:,.0f}"),
    ]
    # As wide as a page, so that the text stays readable on it.
    figure = new_figure(7.8, 0.4 + 3 * (1.0 + 0.28 * len(rows)))
    figure.suptitle(textwrap.fill(title, TITLE), fontsize=10)
    grid = figure.subplots(3, 2, sharey=True)
    places = range(len(rows))
    colours = [f"C{i % 10}" for i in places]
    for axes, (name, value, show) in zip(grid.flat, panels, strict=True):
        values = [value(row) for row in rows]
        if name.startswith("test"):
            _draw_metric(axes, rows, colours)
        else:
            axes.barh(places, values, color=colours, height=0.6, alpha=0.75)
            axes.set_xlim(0, 1.22 * max(values))
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.xaxis.set_major_formatter(lambda amount, _: count(amount))
            for place, amount in zip(places, values, strict=True):
                axes.text(amount + 0.02 * max(values), place, show(amount), va="center", fontsize=8)
        axes.set_title(name, fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(axis="x", alpha=0.3)
    grid[0, 0].set_yticks(list(places), [row.model.replace(":", ":\n") for row in rows])
    for axes in grid[:, 0]:
        axes.tick_params(axis="y", labelsize=7.5)
    grid[0, 0].invert_yaxis()
    save_figure(figure, path)


def _draw_metric(axes: Any, rows: Sequence[Row], colours: Sequence[str]) -> None:
    """The mean with the spread as a whisker, a dot a seed; no bars, for the axis does not begin at 0."""
    for place, (row, colour) in enumerate(zip(rows, colours, strict=True)):
        scale = row.scale
        mean, points = scale * row.value, [scale * value for value in row.values]
        spread = scale * (row.spread or 0.0)
        axes.errorbar(mean, place, xerr=spread, fmt="D", color=colour, markersize=7, capsize=4)
        if len(points) > 1:
            axes.plot(points, [place + 0.22] * len(points), "o", color="black", markersize=3, alpha=0.6)
        shown = row.shown(row.value) + (f" ± {row.shown(row.spread)}" if row.spread is not None else "")
        axes.text(mean, place - 0.2, shown, ha="center", fontsize=8)
    every = [row.scale * (row.value + sign * (row.spread or 0.0)) for row in rows for sign in (-1, 1)]
    least = 1.0 if rows[0].scale == 100 else 0.01 * max(map(abs, every)) or 1.0
    room = max(max(every) - min(every), least)
    axes.set_xlim(min(every) - 0.3 * room, max(every) + 0.3 * room)
    axes.set_ylim(-0.6, len(rows) - 0.4)


def draw_measured(rows: Sequence[Row], headings: Sequence[str], lines: Sequence[Sequence[str]], path: Path) -> None:
    """One panel for each measurement, one bar a network, plain networks in grey.

    Args:
        headings, lines: the table of the measurements, networks in their order.
    """
    count = len(headings) - 1
    figure, (panels,) = grid_of_panels(count, 3, (2.2, 0.9 + 0.26 * len(lines)), (1.6, 0.4), sharey=True)
    figure.suptitle("Accuracy on test images, as they are and changed, and calibration error", fontsize=11)
    places = range(len(lines))
    colours = ["0.6" if row.plain else "C0" for row in ranked(rows)]
    for number, axes in enumerate(panels):
        texts = [line[number + 1] for line in lines]
        values = [0.0 if text == "-" else float(text) for text in texts]
        axes.barh(places, values, color=colours, height=0.7)
        axes.set_xlim(0, 1.25 * max(*values, 1.0))
        for place, (value, text) in enumerate(zip(values, texts, strict=True)):
            axes.text(value, place, f" {text}", va="center", fontsize=7)
        axes.set_title(headings[number + 1], fontsize=9)
        axes.set_yticks(list(places), [line[0].replace(":", ":\n") for line in lines], fontsize=7)
        axes.tick_params(axis="x", labelsize=7)
    panels[0].invert_yaxis()
    save_figure(figure, path)


def draw_curves(rows: Sequence[Row], curves: Mapping[str, Curves], path: Path) -> None:
    """One panel for each corruption, one line a network, plain networks black and dashed.

    The legend below the panels names the plain networks and those of the highest mean accuracy under each corruption;
    the lines of the others are grey.
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
