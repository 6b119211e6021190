"""A picture of how class capsules change when the input is rotated or shifted."""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from mereo.measure.equivariance import TRANSFORMS, PoseChange, why_no_fit
from mereo.measure.style import FAINT, INK, quiet
from mereo.pictures import new_figure, save_figure

LENGTH, ANGLE = "#2b8a3e", "#9c36b5"
FITS = (
    ("linear", "a linear rule from the pose before", "#1971c2", "-"),
    ("unmoved", "the pose before itself", "#e8590c", "-"),
    ("permuted", "a linear rule with pairs shuffled", FAINT, (0, (4, 3))),
)


def draw_equivariance(results: Mapping[str, tuple[list[PoseChange], Tensor, Tensor]], title: str, path: Path) -> None:
    """One row per transform: the variance explained by each fit, change of length and direction.

    Args:
        results: of `equivariance`, by the name of the transform.
        title: above the picture.
        path: of the PNG.
    """
    figure = new_figure(8.4, 3.4 * len(results) + 0.6)
    figure.suptitle(title, fontsize=11, color=INK, fontweight="bold", x=0.01, ha="left")
    grid = figure.subplots(len(results), 2, squeeze=False)
    for row, (name, (moved, _, labels)) in zip(grid, results.items(), strict=True):
        unit = TRANSFORMS[name][2]
        _fits(row[0], moved, why_no_fit(moved, labels), name, unit)
        _length_and_angle(row[1], moved, unit)
    handles: list[Any] = next((lines for axes in grid[:, 0] if (lines := axes.get_legend_handles_labels()[0])), [])
    if handles:
        figure.legend(handles=handles, loc="outside lower left", ncols=3, fontsize=8.5, frameon=False, labelcolor=INK)
    figure.get_layout_engine().set(wspace=0.06)
    save_figure(figure, path)


def _fits(axes: Any, moved: list[PoseChange], reason: str | None, name: str, unit: str) -> None:
    """Lines of the three fits, or the reason why there are none."""
    x = [m.amount for m in moved]
    if reason is not None:
        quiet(axes, f"{name}: pose explained by", "", "")
        axes.set(xticks=[], yticks=[])
        _write(axes, reason)
        return
    quiet(axes, f"{name}: pose explained by", unit, "share of the variance (R²)")
    for field, label, shade, style in FITS:
        y = [getattr(m, field) for m in moved]
        axes.plot(x, y, color=shade, linestyle=style, marker=".", label=label, linewidth=1.6)
    axes.axhline(0, color=FAINT, linewidth=0.6)
    axes.set_ylim(-0.55, 1.05)


def _write(axes: Any, text: str) -> None:
    """A few words in the middle of a panel that has nothing else to show."""
    axes.text(
        0.5, 0.5, textwrap.fill(text, 36), ha="center", va="center", fontsize=9, color=INK, transform=axes.transAxes
    )


def _length_and_angle(axes: Any, moved: list[PoseChange], unit: str) -> None:
    x = [m.amount for m in moved]
    axes.plot(x, [m.length for m in moved], color=LENGTH, marker="o", markersize=4, linewidth=1.6)
    quiet(axes, "length and direction of the pose", unit, "length after / before")
    axes.yaxis.label.set_color(LENGTH)
    axes.set_ylim(0, max(1.1, *(1.05 * m.length for m in moved)))
    other = axes.twinx()
    other.plot(x, [m.angle for m in moved], color=ANGLE, marker="^", markersize=4, linewidth=1.6)
    other.set_ylim(0, 99)
    other.set_ylabel("angle to the pose before, degrees", fontsize=8.5, color=ANGLE)
    other.tick_params(length=0, labelsize=8, colors=FAINT)
    for side in other.spines.values():
        side.set_visible(False)
