"""Pictures of curves: accuracy over severity or epsilon, several networks in one plot, and attacked images."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from mereo.measure.curves import Point
from mereo.measure.style import FAINT, INK, RIGHT, WRONG, colour, figure_title, marker, quiet
from mereo.pictures import displayable, new_figure, save_figure

AMPLIFIED = 0.5
"""Grey level of an unchanged pixel in the picture of a perturbation."""


def draw_curves(panels: Mapping[str, tuple[str, Mapping[str, Sequence[Point]]]], path: Path, chance: float) -> None:
    """Accuracy curves with their 95 % intervals: one panel per corruption or attack, one line per network.

    Args:
        panels: title -> (label of the x axis, {network: points}).
        path: of the PNG.
        chance: accuracy of guessing, drawn as a dashed line.
    """
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    figure = new_figure(max(3.7 * columns, 5.2), 3.1 * rows + 0.4)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for place, axes in enumerate(grid.flat):
        if place >= len(panels):
            axes.set_axis_off()
            continue
        title, (label, curves) = list(panels.items())[place]
        for number, (name, points) in enumerate(curves.items()):
            x = [p.amount for p in points]
            spans = [p.to_dict() for p in points]
            low, high = ([100 * span[key] for span in spans] for key in ("accuracy_low", "accuracy_high"))
            axes.fill_between(x, low, high, color=colour(number), alpha=0.13, linewidth=0)
            axes.plot(
                x, [100 * p.accuracy for p in points], color=colour(number), marker=marker(number), markersize=4.5,
                linewidth=1.6, label=name,
            )  # fmt: skip
        axes.axhline(100 * chance, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)), label="guessing")
        quiet(axes, title, label, "accuracy in %" if place % columns == 0 else "")
        axes.set_ylim(-2, 102)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(len(labels), 4), fontsize=8.5, frameon=False,
        labelcolor=INK,
    )  # fmt: skip
    save_figure(figure, path)


def draw_attacked(
    clean: Tensor,
    attacked: Sequence[tuple[float, Tensor, list[str], list[bool]]],
    truth: list[str],
    title: str,
    path: Path,
) -> None:
    """Images before and after an attack: one row per image, two columns per epsilon (image, magnified change).

    Args:
        clean: in [0, 1].
        attacked: for each epsilon: itself, the attacked images, the predicted classes, whether they are correct.
        truth: names of the true classes.
        title: above the picture.
        path: of the PNG.

    Shapes: clean and each attacked (n, channels, height, width).
    """
    rows, columns = len(clean), 1 + 2 * len(attacked)
    width = max(0.98 * columns + 0.2, 5.4)
    figure = new_figure(width, 1.22 * rows + 0.95)
    figure_title(figure, title, width)
    note = "The image and its class, then for each epsilon the attacked image, the predicted class,\nand what was"
    line = f"{note} added (white) or subtracted (black); grey is unchanged."
    figure.supxlabel(line, fontsize=7.5, color=FAINT, x=0.01, ha="left")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for i in range(rows):
        _show(grid[i, 0], clean[i], truth[i], INK)
        for k, (epsilon, images, predicted, right) in enumerate(attacked):
            _show(grid[i, 1 + 2 * k], images[i], predicted[i], RIGHT if right[i] else WRONG)
            change = AMPLIFIED + (images[i] - clean[i]) / max(2 * epsilon, 1e-12)
            _show(grid[i, 2 + 2 * k], change, f"± {epsilon:g}" if i == 0 else "", FAINT)
    save_figure(figure, path)


def _show(axes: Any, image: Tensor, title: str, shade: str) -> None:
    axes.imshow(displayable(image), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_title(title, fontsize=7.5, color=shade, pad=2)
