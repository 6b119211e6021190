"""A picture of how class capsules change when the input is rotated or shifted."""

import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mereo.measure.equivariance import TRANSFORMS, PoseChange, why_no_fit
from mereo.measure.style import FAINT, INK, quiet
from mereo.pictures import new_figure, save_figure

TRACKS = 12
LENGTH, ANGLE = "#2b8a3e", "#9c36b5"
FITS = (
    ("linear", "a linear rule from the pose before", "#1971c2", "-"),
    ("unmoved", "the pose before itself", "#e8590c", "-"),
    ("permuted", "a linear rule with pairs shuffled", FAINT, (0, (4, 3))),
)


def draw_equivariance(
    results: Mapping[str, tuple[list[PoseChange], Tensor, Tensor]], names: tuple[str, ...], title: str, path: Path
) -> None:
    """One row per transform: the variance explained by each fit, change of length and direction, tracks of single
    poses.

    Args:
        results: of `equivariance`, by the name of the transform.
        names: of the classes.
        title: above the picture.
        path: of the PNG.
    """
    figure = new_figure(12.2, 3.4 * len(results) + 0.6)
    figure.suptitle(title, fontsize=11, color=INK, fontweight="bold", x=0.01, ha="left")
    grid = figure.subplots(len(results), 3, squeeze=False)
    for row, (name, (moved, tracks, labels)) in zip(grid, results.items(), strict=True):
        unit = TRANSFORMS[name][2]
        _fits(row[0], moved, why_no_fit(moved, labels), name, unit)
        _length_and_angle(row[1], moved, unit)
        _tracks(row[2], figure, moved, tracks, labels, names, unit)
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


def _tracks(
    axes: Any, figure: Any, moved: list[PoseChange], tracks: Tensor, labels: Tensor, names: tuple[str, ...], unit: str
) -> None:
    """Poses of a few images of one class as the transform grows, in the two directions in which they move most."""
    from matplotlib.ticker import MaxNLocator

    amounts = torch.tensor([m.amount for m in moved])
    best = max(moved, key=lambda m: len(m.by_class)).by_class
    middle = next((m for m in moved if m.amount > 0 and m.by_class), None)
    scored = middle.by_class if middle is not None else best
    finite = {k: v for k, v in scored.items() if not math.isnan(v)}
    shown = int(labels.mode().values) if len(labels) else 0
    shown = max(finite, key=lambda k: finite[k]) if finite else shown
    poses = tracks[:, labels == shown].double()
    if poses.shape[1] < 2:
        axes.set_axis_off()
        _write(axes, "no class has two images whose poses could be compared")
        return
    flat = poses.flatten(0, 1)
    centre = flat.mean(0)
    directions = torch.linalg.svd(flat - centre, full_matrices=False).Vh[:2]
    places = (poses[:, :TRACKS] - centre) @ directions.T
    scale: Any = None
    for track in places.unbind(1):
        axes.plot(track[:, 0], track[:, -1], color="#ced4da", linewidth=0.9, zorder=1)
        scale = axes.scatter(
            track[:, 0], track[:, -1], c=amounts, cmap="coolwarm", s=18, zorder=2, edgecolors="#868e96", linewidths=0.4
        )
    axes.xaxis.set_major_locator(MaxNLocator(5))
    quiet(axes, f"poses of “{names[shown]}”, {places.shape[1]} images", "first direction", "second direction")
    bar = figure.colorbar(scale, ax=axes, shrink=0.85)
    bar.set_label(unit, fontsize=8.5, color=FAINT)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8, colors=FAINT)
