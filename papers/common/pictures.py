"""Pictures that several experiments draw: curves and runs in one panel, and rows of images."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from mereo.pictures import displayable, new_figure, save_figure


def draw_curves(
    curves: Mapping[str, Mapping[Any, float]],
    across: str,
    up: str,
    path: Path,
    *,
    size: tuple[float, float] = (5, 3.2),
    marker: str = "o",
    style: Mapping[str, Mapping[str, Any]] | None = None,
    legend: Mapping[str, Any] | None = None,
    **axis: Any,
) -> None:
    """Curves x -> y by name, with a legend.

    Args:
        across, up: titles of the axes.
        path: of the PNG.
        size: of the figure in inches.
        marker: of all points.
        style: of the curves by name, for matplotlib's `plot`.
        legend: for matplotlib's `legend`.
        axis: for `Axes.set`.
    """
    figure = new_figure(*size)
    axes = figure.subplots()
    for name, values in curves.items():
        axes.plot([*values], [*values.values()], **{"marker": marker, "label": name, **(style or {}).get(name, {})})
    axes.set(xlabel=across, ylabel=up, **axis)
    axes.grid(alpha=0.3)
    axes.legend(**{"frameon": False, **(legend or {})})
    save_figure(figure, path)


def draw_runs(runs: Mapping[str, Sequence[float]], across: str, up: str, path: Path) -> None:
    """A figure of the runs of each name, a point for each seed; other arguments as for `draw_curves`."""
    seeds = range(min(map(len, runs.values())))
    curves = {f"seed {seed}": {name: values[seed] for name, values in runs.items()} for seed in seeds}
    draw_curves(curves, across, up, path, style={label: {"linestyle": "none"} for label in curves})


def draw_rows(
    rows: Mapping[str, Iterable[Tensor]], columns: int, path: Path, cell: tuple[float, float], left: float = 1.2
) -> None:
    """A row of images under each name.

    Args:
        rows: images (channels, height, width) in [0, 1], or maps (height, width) of numbers from 0 to 9.
        columns: images of a row.
        path: of the PNG.
        cell: width and height of an image in inches.
        left: width of the names.
    """
    figure = new_figure(cell[0] * columns + left, cell[1] * len(rows) + 0.3)
    for line, (name, pictures) in zip(figure.subplots(len(rows), columns, squeeze=False), rows.items(), strict=True):
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
        for axes, picture in zip(line, pictures, strict=True):
            if picture.dim() == 2:
                axes.imshow(picture.cpu().numpy(), cmap="tab10", vmin=0, vmax=9, interpolation="nearest")
            else:
                axes.imshow(displayable(picture), cmap="gray", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
    save_figure(figure, path)
