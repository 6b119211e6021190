"""Pictures of the constellations: some images with the objects assigned to their points, and the learned templates."""

from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mereo.pictures import new_figure, save_figure
from papers.common.constellations import CLASSIC, Constellations, make_constellations, make_templates
from papers.constellations.capsnet import ConstellationCapsNet
from papers.constellations.methods import compared

SHADES = ("#1971c2", "#e8590c", "#2b8a3e", "#868e96")
MARKERS = ("o", "^", "s", "X")
"""Of the three objects and of clutter."""
SHOWN = {
    "doubly stochastic, 20 starts": "doubly stochastic",
    "inversion, learned templates, 20 starts": "inversion,\nlearned templates",
    "EM routing of pairs, 10 passes": "EM routing\nof pairs",
    "dynamic routing of points, 100 passes": "dynamic routing\nof points",
}
"""Method -> the name of its row."""
EACH = 2
"""Images of each noise."""


def draw_constellations(networks: Mapping[float, ConstellationCapsNet], path: Path) -> None:
    """True objects in the first row, and below the assignment of each inference; a ring marks a wrong point.

    Args:
        networks: noise -> the network that learned from images with this noise.
        path: of the PNG.
    """
    columns = [(noise, 0) for noise in networks for _ in range(EACH)] + [(0.0, 2)] * EACH
    figure = new_figure(1.55 * len(columns) + 0.6, 1.62 * (1 + len(SHOWN)) + 0.5)
    figure.suptitle(
        "Points assigned to objects. Colour: object, under the best matching; grey: none; ring: wrong", fontsize=10
    )
    grid = figure.subplots(1 + len(SHOWN), len(columns), squeeze=False)
    column = 0
    for noise, clutter in dict.fromkeys(columns):
        generator = torch.Generator().manual_seed(3)
        data = _all_objects(make_constellations(64, generator, noise=noise, clutter=clutter), EACH)
        methods = compared(networks[noise])
        read = {row: methods[name](data, clutter, generator) for name, row in SHOWN.items()}
        for image in range(EACH):
            title = f"noise {noise:g}" + (f", clutter {clutter}" if clutter else "")
            truth = data.labels[image]
            _panel(grid[0][column], data.points[image], truth, truth, outlined=True)
            grid[0][column].set_title(title, fontsize=9)
            for place, labels in enumerate(read.values(), start=1):
                named = _matched(labels[image], truth)
                _panel(grid[place][column], data.points[image], named, truth)
                right = int((named == truth).sum())
                grid[place][column].set_title(f"{right} of {len(truth)}", fontsize=8, color="#495057", pad=3)
            column += 1
    for axes, name in zip(grid[:, 0], ("true", *read), strict=True):
        axes.set_ylabel(name, fontsize=9, rotation=0, ha="right", va="center", labelpad=8)
    save_figure(figure, path)


def _all_objects(data: Constellations, count: int) -> Constellations:
    """The first images that hold every object."""
    whole = data.mask.all(1).nonzero().squeeze(-1)[:count]
    return Constellations(*(x[whole] for x in data))


def _matched(labels: Tensor, truth: Tensor) -> Tensor:
    """The labels under the best matching with the true ones."""
    names = range(len(CLASSIC) + 1)
    matched = (torch.tensor(order)[labels] for order in permutations(names))
    return max(matched, key=lambda named: int((named == truth).sum()))


def _panel(axes: Any, points: Tensor, labels: Tensor, truth: Tensor, outlined: bool = False) -> None:
    for number, (shade, marker) in enumerate(zip(SHADES, MARKERS, strict=True)):
        own = points[labels == number]
        if outlined and number < len(CLASSIC):
            axes.fill(*own.T.tolist(), facecolor=shade, alpha=0.15)
            axes.fill(*own.T.tolist(), facecolor="none", edgecolor=shade, linewidth=0.9)
        axes.scatter(*own.T.tolist(), s=26, color=shade, marker=marker, linewidths=0, zorder=3)
    wrong = points[labels != truth]
    axes.scatter(*wrong.T.tolist(), s=80, facecolors="none", edgecolors="#e03131", linewidths=1.1, zorder=4)
    _frame(axes, 1.16)


def _frame(axes: Any, reach: float) -> None:
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[], aspect="equal")
    for side in axes.spines.values():
        side.set_color("#dee2e6")


def draw_templates(networks: Mapping[float, ConstellationCapsNet], path: Path) -> None:
    """The true templates in the first row, and those that were learned with each noise below.

    Args:
        networks: noise -> the network that learned from images with this noise.
        path: of the PNG.
    """
    true = make_templates()
    rows = {"true": (true.points, true.owner)}
    rows |= {f"learned,\nnoise {noise:g}": (net.templates, net.owner) for noise, net in networks.items()}
    objects = len(CLASSIC)
    figure = new_figure(1.7 * objects + 1.1, 1.75 * len(rows))
    grid = figure.subplots(len(rows), objects, squeeze=False)
    for line, (name, (points, owner)) in zip(grid, rows.items(), strict=True):
        for number, axes in enumerate(line):
            own = points[owner == number]
            own = own - own.mean(0)
            own = own * (len(own) / own.square().sum()) ** 0.5
            # In the order of their angles, so that the outline does not cross itself.
            own = own[own[:, 1].atan2(own[:, 0]).argsort()]
            axes.fill(*own.T.tolist(), facecolor=SHADES[number], alpha=0.15)
            axes.scatter(*own.T.tolist(), s=34, color=SHADES[number], marker=MARKERS[number], linewidths=0, zorder=3)
            _frame(axes, 1.6)
        line[0].set_ylabel(name, fontsize=9, rotation=0, ha="right", va="center", labelpad=8)
    save_figure(figure, path)
