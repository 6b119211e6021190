"""A comparison of networks as files: Markdown, CSV, JSON, and one picture."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mereo.escape import for_markdown
from mereo.export.rows import Row
from mereo.files import write_atomically
from mereo.pictures import new_figure, save_figure
from mereo.tasks import get_task

COUNTED = ("images", "attacked")
"""Measurements that are numbers of images."""
COLUMNS = (
    "network", "test {metric}", "spread", "seeds", "parameters", "MACs", "training images/s", "inference images/s",
    "training memory",
)  # fmt: skip


def columns(rows: Sequence[Row]) -> tuple[str, ...]:
    """The headings of the table; the second names the metric of the task."""
    return tuple(name.format(metric="%" if rows[0].metric == "accuracy" else rows[0].metric) for name in COLUMNS)


def _scale(row: Row) -> float:
    """What values are multiplied by to be shown: shares are in percent."""
    return 100.0 if get_task(row.task).is_share else 1.0


def _shown(row: Row, value: float) -> str:
    return f"{100 * value:.2f}" if get_task(row.task).is_share else f"{value:.4g}"


def count(number: float) -> str:
    """A large number with a unit: 950, 344 k, 8.2 M, 1.3 G."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            shown = number / size
            return f"{shown:.0f} {unit}" if shown >= 100 else f"{shown:.1f} {unit}"
    return f"{number:.0f}"


def cells(row: Row) -> tuple[str, ...]:
    """One row of the table, as text under `columns`."""
    spread = "-" if row.spread is None else _shown(row, row.spread)
    return (
        row.model, _shown(row, row.value), spread, str(len(row.values)), f"{row.parameters:,}",
        count(row.macs), f"{row.train_rate:,.0f}", f"{row.rate:,.0f}", f"{row.memory / 2**20:,.0f} MiB",
    )  # fmt: skip


def measured_cells(
    rows: Sequence[Row], measured: Mapping[str, Mapping[str, float | None]]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headings and rows of a table of further measurements, shares in percent; what no network has is left out."""
    names = [name for name in next(iter(measured.values())) if name not in COUNTED]
    names = [name for name in names if any(each[name] is not None for each in measured.values())]

    def shown(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.1f}"

    lines = [(row.model, *(shown(measured[row.model][name]) for name in names)) for row in ranked(rows)]
    return ("network", *(f"{name.replace('_', ' ')} %" for name in names)), lines


def draw_measured(rows: Sequence[Row], measured: Mapping[str, Mapping[str, float | None]], path: Path) -> None:
    """One panel for each measurement, one bar a network, plain networks in grey."""
    headings, lines = measured_cells(rows, measured)
    count = len(headings) - 1
    figure = new_figure(3.2 * min(count, 4) + 2, (1.2 + 0.32 * len(lines)) * -(-count // 4))
    grid = figure.subplots(-(-count // 4), min(count, 4), sharey=True, squeeze=False)
    places = range(len(lines))
    colours = ["0.6" if row.plain else "C0" for row in ranked(rows)]
    for number, axes in enumerate(grid.flat):
        if number >= count:
            axes.set_axis_off()
            continue
        texts = [line[number + 1] for line in lines]
        values = [0.0 if text == "-" else float(text) for text in texts]
        axes.barh(places, values, color=colours, height=0.7)
        axes.set_xlim(0, 1.2 * max(*values, 1.0))
        for place, (value, text) in enumerate(zip(values, texts, strict=True)):
            axes.text(value, place, f" {text}", va="center", fontsize=7)
        axes.set_title(headings[number + 1], fontsize=9)
        axes.set_yticks(list(places), [line[0].replace(":", ":\n") for line in lines], fontsize=7)
        axes.tick_params(axis="x", labelsize=7)
    grid[0, 0].invert_yaxis()
    save_figure(figure, path)


def notes(rows: Sequence[Row], protocol: str) -> list[str]:
    """Notes on the columns of the table."""
    chosen = sorted({row.chosen_on for row in rows})
    which = " or ".join("the best on validation" if c == "validation" else "those of the last epoch" for c in chosen)
    return [
        f"Protocol: {protocol}.",
        f"{rows[0].metric.capitalize()} on {rows[0].test_images:,} test images, mean over the seeds, with the weights"
        f" that were {which};"
        " spread is the standard deviation of the seeds.",
        "MACs of one image forward. Training memory is estimated, not measured. Training speed is that of the runs,"
        " which ran at different times; inference was timed in turn on batches of 64, and is the median.",
    ]


def markdown(
    rows: Sequence[Row],
    data: str,
    protocol: str,
    verdicts: Sequence[str] = (),
    measured: Mapping[str, Mapping[str, float | None]] = MappingProxyType({}),
) -> str:
    """The comparison as a page, the best network first; `verdicts` are lines on which is better at what."""
    title = f"# Networks compared on {for_markdown(Path(data).name)}"
    lines = [title, "", f"| {' | '.join(columns(rows))} |", f"|{'---|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(map(for_markdown, cells(row)))} |" for row in ranked(rows)]
    if measured:
        headings, table = measured_cells(rows, measured)
        lines += ["", f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
        lines += [f"| {' | '.join(map(for_markdown, line))} |" for line in table]
    return "\n".join(
        [
            *lines,
            "",
            *map(for_markdown, [*verdicts, *notes(rows, protocol)]),
            "",
            "![The comparison as bars](comparison.png)",
            *(["", "![Further measurements as bars](measured.png)"] if measured else []),
            "",
        ]
    )


def ranked(rows: Sequence[Row]) -> list[Row]:
    """The best first, by the metric of the task."""
    sign = -1 if get_task(rows[0].task).chooses[1] == "max" else 1
    return sorted(rows, key=lambda row: sign * row.value)


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    plain = [row.to_dict() for row in ranked(rows)]
    writer = csv.DictWriter(text, list(plain[0]), lineterminator="\n")
    writer.writeheader()
    for each in plain:
        writer.writerow({k: " ".join(map(str, v)) if isinstance(v, list) else v for k, v in each.items()})
    return text.getvalue()


def draw_comparison(rows: Sequence[Row], path: Path, title: str) -> None:
    """One panel per quantity, one bar per network, dots for the seeds."""
    from matplotlib.ticker import MaxNLocator

    rows = ranked(rows)
    metric = rows[0].metric + (" in %" if get_task(rows[0].task).is_share else "")
    panels: list[tuple[str, Callable[[Row], float], Callable[[float], str]]] = [
        (f"test {metric}, mean and seeds", lambda row: row.value, str),
        ("parameters", lambda row: row.parameters, count),
        ("MACs of one image", lambda row: row.macs, count),
        ("inference, images/s", lambda row: row.rate, lambda v: f"{v:,.0f}"),
        ("training, images/s", lambda row: row.train_rate, lambda v: f"{v:,.0f}"),
        ("training memory in MiB", lambda row: row.memory / 2**20, lambda v: f"{v:,.0f}"),
    ]
    figure = new_figure(13, 2.2 + 0.75 * len(rows))
    figure.suptitle(title, fontsize=11)
    grid = figure.subplots(2, 3, sharey=True)
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
    grid[0, 0].invert_yaxis()
    save_figure(figure, path)


def _draw_metric(axes: Any, rows: Sequence[Row], colours: Sequence[str]) -> None:
    """The mean with the spread as a whisker, a dot a seed; no bars, for the axis does not begin at 0."""
    for place, (row, colour) in enumerate(zip(rows, colours, strict=True)):
        scale = _scale(row)
        mean, points = scale * row.value, [scale * value for value in row.values]
        spread = scale * (row.spread or 0.0)
        axes.errorbar(mean, place, xerr=spread, fmt="D", color=colour, markersize=7, capsize=4)
        if len(points) > 1:
            axes.plot(points, [place + 0.22] * len(points), "o", color="black", markersize=3, alpha=0.6)
        shown = _shown(row, row.value) + (f" ± {_shown(row, row.spread)}" if row.spread is not None else "")
        axes.text(mean, place - 0.2, shown, ha="center", fontsize=8)
    every = [_scale(row) * (row.value + sign * (row.spread or 0.0)) for row in rows for sign in (-1, 1)]
    least = 1.0 if _scale(rows[0]) == 100 else 0.01 * max(map(abs, every)) or 1.0
    room = max(max(every) - min(every), least)
    axes.set_xlim(min(every) - 0.3 * room, max(every) + 0.3 * room)
    axes.set_ylim(-0.6, len(rows) - 0.4)


def write_comparison(
    rows: Sequence[Row],
    folder: Path,
    data: str,
    protocol: str,
    measured: Mapping[str, Mapping[str, float | None]] = MappingProxyType({}),
    verdicts: Sequence[str] = (),
) -> list[Path]:
    """comparison.md, .csv, .json and .png in a folder, and measured.png where there are further measurements.

    Args:
        measured: further measurements by network.
        verdicts: lines on which network is better at what.
    """
    document: dict[str, Any] = {"data": data, "protocol": protocol, "networks": [row.to_dict() for row in ranked(rows)]}
    document |= {"measured": {name: dict(values) for name, values in measured.items()}} if measured else {}
    texts = {
        "md": markdown(rows, data, protocol, verdicts, measured),
        "csv": _csv(rows),
        "json": json.dumps(document, indent=2) + "\n",
    }
    paths = []
    for suffix, text in texts.items():
        paths.append(folder / f"comparison.{suffix}")
        write_atomically(paths[-1], text)
    paths.append(folder / "comparison.png")
    draw_comparison(rows, paths[-1], f"{Path(data).name}: {protocol}")
    if measured:
        paths.append(folder / "measured.png")
        draw_measured(rows, measured, paths[-1])
    return paths
