"""Scanpaths over the shelf on which they were made: the crops of the objects, and numbered fixations."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mereo.pictures import grid_of_panels, save_figure

_TRUE, _PREDICTED = "#1c4f8c", "#c92a2a"
_GAP, _ACROSS, _INCHES = 0.12, 4, 0.44
"""Between crops, as a share of their sides; panels in a row; and inches of a cell."""


def draw_shelves(
    regions: Tensor, size: tuple[int, int], answers: Mapping[str, Tensor], titles: Sequence[str], path: Path,
    across: int = _ACROSS,
) -> None:  # fmt: skip
    """A panel for each scene and each of its answers; the target has a frame, fixations are numbered from 1.

    Args:
        regions: (batch, objects + 1, 3 * height * width + 2).
        size: height and width of the crops.
        answers: name -> objects, -1 behind the end, int64 (batch, steps); none for the shelves only.
        titles: of the scenes.
        across: panels in a row.
    """
    places = regions[..., -2:].round().long().cpu()
    rows, columns = (int(side) + 1 for side in places.flatten(0, 1).amax(0).clamp(min=0))
    names, shape = list(answers) or [""], size[0] / size[1]
    panel = (max(_INCHES * columns, 1.6), max(_INCHES * rows * shape, 0.9) + 0.3)
    figure, (panels,) = grid_of_panels(len(names) * len(regions), across, panel)
    for number, axes in enumerate(panels):
        scene, name = number // len(names), names[number % len(names)]
        colour = _TRUE if name == names[0] and len(names) > 1 else _PREDICTED
        draw_shelf(axes, regions[scene], size, answers[name][scene].tolist() if name else (), colour)
        axes.set(xlim=(-0.55, columns - 0.45), ylim=((rows - 0.45) * shape, -0.55 * shape))
        axes.set_title(": ".join(filter(None, (titles[scene], name))), fontsize=7)
    save_figure(figure, path)


def draw_shelf(
    axes: Any, regions: Tensor, size: tuple[int, int], fixations: Sequence[int] = (), colour: str = _PREDICTED
) -> None:
    """The objects of one scene at their places, a frame around the target, and a path, -1 behind its end."""
    from matplotlib.patches import Rectangle

    regions, places = regions.float().cpu(), regions[:, -2:].round().long().cpu()
    shape, half = size[0] / size[1], 0.5 - _GAP / 2
    axes.set(xticks=[], yticks=[])
    for crop, (row, column) in zip(regions[:-1, :-2].clamp(0, 1), places[:-1].tolist(), strict=True):
        if row >= 0:
            box = (column - half, column + half, (row + half) * shape, (row - half) * shape)
            axes.imshow(crop.view(3, *size).permute(1, 2, 0).numpy(), extent=box, interpolation="nearest")
    row, column = places[-1].tolist()
    if row >= 0:
        corner = (column - 0.5, (row - 0.5) * shape)
        axes.add_patch(Rectangle(corner, 1, shape, fill=False, edgecolor="#2b8a3e", lw=1.8))
    if path := [each for each in fixations if each >= 0]:
        _path(axes, places, path, colour, shape)


def _path(axes: Any, places: Tensor, fixations: Sequence[int], colour: str, shape: float) -> None:
    """Lines between fixations; the numbers of all fixations of an object stand together in its lower part."""
    spots = torch.stack((places[:, 1].double(), places[:, 0] * shape), 1).numpy()
    axes.plot(*spots[list(fixations)].T, color=colour, lw=1.2, alpha=0.75, marker="o", ms=3)
    for each in sorted(set(fixations)):
        steps = [str(step + 1) for step in np.flatnonzero(np.array(fixations) == each)]
        label = ",".join(steps if len(steps) < 4 else [*steps[:2], "..", steps[-1]])
        box = {"boxstyle": "round,pad=0.12", "fc": "white", "ec": colour, "lw": 0.5, "alpha": 0.9}
        axes.text(
            spots[each, 0], spots[each, 1] + 0.27 * shape, label, fontsize=6, color=colour, ha="center", va="center",
            bbox=box,
        )  # fmt: skip
