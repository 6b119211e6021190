"""A comparison of networks as files: Markdown, CSV, JSON and pictures."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mereo.escape import for_markdown
from mereo.export.comparison_pictures import Curves, count, draw_comparison, draw_curves
from mereo.export.rows import Row, ranked
from mereo.files import write_atomically
from mereo.runtime.text import heading, rounded

WITHOUT_COLUMN = ("images", "attacked", "chance")
"""Measurements that the table leaves out: numbers of images, and the accuracy of guessing."""
HEADINGS = {
    "familiar_viewpoints": "familiar viewpoints", "rotation": "rotated", "translation": "translated",
    "occlusion": "occluded", "corruption": "corrupted", "attack": "attacked (PGD)", "apgd": "attacked (APGD)",
    "couplings_uniform": "uniform couplings", "couplings_shuffled": "shuffled couplings",
}  # fmt: skip
"""Measurements in words, as headings; `EXPLAINED` is printed below them."""
EXPLAINED = (
    "The columns are accuracies on the test images: unchanged, with the change or attack in the heading, or with other"
    " couplings; and the expected calibration error."
)
COLUMNS = (
    "network", "test {metric}", "spread", "seeds", "parameters", "MACs", "training {unit}/s", "inference {unit}/s",
    "training memory",
)  # fmt: skip


def columns(rows: Sequence[Row]) -> tuple[str, ...]:
    """The headings of the table; the second names the metric of the task."""
    metric = f"{rows[0].metric}, %" if rows[0].scale == 100 else rows[0].metric
    return tuple(name.format(metric=metric, unit=rows[0].unit) for name in COLUMNS)


def cells(row: Row) -> tuple[str, ...]:
    """One row of the table, as text under `columns`."""
    spread = "-" if row.spread is None else row.shown(row.spread)
    return (
        row.model, row.shown(row.value), spread, str(len(row.values)), f"{row.parameters:,}",
        count(row.macs), rounded(row.train_rate), rounded(row.rate), f"{row.memory / 2**20:,.0f} MiB",
    )  # fmt: skip


def measured_cells(
    rows: Sequence[Row], measured: Mapping[str, Mapping[str, float | None]]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headings and rows of further measurements, shares in percent; columns without any value are left out."""
    names = [name for name in next(iter(measured.values())) if name not in WITHOUT_COLUMN]
    names = [name for name in names if any(each[name] is not None for each in measured.values())]

    def shown(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.1f}"

    lines = [(row.model, *(shown(measured[row.model][name]) for name in names)) for row in ranked(rows)]
    return ("network", *(f"{HEADINGS.get(name, heading(name))}, %" for name in names)), lines


def notes(rows: Sequence[Row], protocol: str) -> list[str]:
    """Notes on the columns of the table."""
    chosen = sorted({row.chosen_on for row in rows})
    measured = [row.memory_measured for row in rows]
    words = ("estimated, not measured", "partly estimated", "the measured peak of a step")
    memory = words[any(measured) + all(measured)]
    which = " or ".join("the best on validation" if c == "validation" else "from the last epoch" for c in chosen)
    return [
        f"Protocol: {protocol}.",
        f"Test {rows[0].metric} is the mean over the seeds on {rows[0].test_images:,} {rows[0].unit}, with the weights"
        f" that were {which}; spread is the standard deviation of the seeds.",
        f"MACs of one input forward. Training memory is {memory}. Training speed was measured in the"
        " runs, at different times; inference was timed in turn on batches of 64, and is the median.",
    ]


def markdown(
    rows: Sequence[Row],
    data: str,
    protocol: str,
    verdicts: Sequence[str] = (),
    measured: Mapping[str, Mapping[str, float | None]] = MappingProxyType({}),
    drawn: bool = False,
) -> str:
    """The comparison as a page, the best network first.

    Args:
        verdicts: lines on which network is better at what.
        measured: further measurements by network.
        drawn: whether there is a picture of curves.
    """
    title = f"# Networks compared on {for_markdown(Path(data).name)}"
    lines = [title, "", f"| {' | '.join(columns(rows))} |", f"|{'---|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(map(for_markdown, cells(row)))} |" for row in ranked(rows)]
    if measured:
        headings, table = measured_cells(rows, measured)
        lines += ["", f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
        lines += [f"| {' | '.join(map(for_markdown, line))} |" for line in table]
        verdicts = [EXPLAINED, *verdicts]
    return "\n".join(
        [
            *lines,
            "",
            *(f"- {for_markdown(line)}" for line in [*verdicts, *notes(rows, protocol)]),
            "",
            "![The comparison as bars](comparison.png)",
            *(["", "![Accuracy over the severity of corruptions](curves.png)"] if drawn else []),
            "",
        ]
    )


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    plain = [row.to_dict() for row in ranked(rows)]
    writer = csv.DictWriter(text, list(plain[0]), lineterminator="\n")
    writer.writeheader()
    for each in plain:
        writer.writerow({k: " ".join(map(str, v)) if isinstance(v, list) else v for k, v in each.items()})
    return text.getvalue()


def write_comparison(
    rows: Sequence[Row],
    folder: Path,
    data: str,
    protocol: str,
    measured: Mapping[str, Mapping[str, float | None]] = MappingProxyType({}),
    verdicts: Sequence[str] = (),
    curves: Mapping[str, Curves] = MappingProxyType({}),
) -> list[Path]:
    """comparison.md, .csv, .json and .png in a folder, with curves.png if there are curves.

    Args:
        measured: further measurements by network.
        verdicts: lines on which network is better at what.
        curves: accuracy over the severity of corruptions, by network.
    """
    document: dict[str, Any] = {"data": data, "protocol": protocol, "networks": [row.to_dict() for row in ranked(rows)]}
    document |= {"measured": {name: dict(values) for name, values in measured.items()}} if measured else {}
    document |= {"curves": {name: dict(each) for name, each in curves.items()}} if curves else {}
    texts = {
        "md": markdown(rows, data, protocol, verdicts, measured, drawn=bool(curves)),
        "csv": _csv(rows),
        "json": json.dumps(document, indent=2) + "\n",
    }
    paths = []
    for suffix, text in texts.items():
        paths.append(folder / f"comparison.{suffix}")
        write_atomically(paths[-1], text)
    paths.append(folder / "comparison.png")
    draw_comparison(rows, paths[-1], f"{Path(data).name}: {protocol}")
    if curves:
        paths.append(folder / "curves.png")
        draw_curves(rows, curves, paths[-1])
    return paths
