"""Sets of points with the polygons, tours or triangles that pointers make of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from mereo.data.pointing import counts_of
from mereo.pictures import grid_of_panels, save_figure

COLOURS = ("silver", "royalblue", "crimson")
"""Colours of the true answer, of a prediction, and of a wrong prediction."""
_ACROSS = 8


def draw_points(
    points: Tensor,
    lengths: Tensor,
    answers: Mapping[str, Tensor],
    titles: Sequence[str],
    path: Path,
    *,
    triangles: bool = False,
    wrong: Sequence[bool] = (),
) -> None:
    """A panel for each set: its points, the true answer as a broad line and the prediction as a thin one, red if wrong.

    Args:
        points, lengths: of the sets, (batch, most, 2) and (batch,).
        answers: pointers by kind, "true" or "predicted": int64 (batch, steps).
        titles: of the panels.
        path: of the picture.
        triangles: whether every three pointers make a triangle; otherwise all make a closed line.
        wrong: whether each prediction is wrong; by default none is.
    """
    across = min(_ACROSS, max(len(points), 1))
    figure, (panels,) = grid_of_panels(len(points), across, (1.5, 1.6))
    for place, axes in enumerate(panels):
        for name, pointers in answers.items():
            chosen = pointers[place, : int(counts_of(pointers[place : place + 1]))].cpu() - 1
            red = bool(wrong) and wrong[place]
            colour, width = (COLOURS[0], 4) if name == "true" else (COLOURS[2 if red else 1], 1.2)
            draw_cycles(axes, points[place].cpu(), chosen, 3 if triangles else len(chosen), colour, width)
        across_, up = points[place, : int(lengths[place])].cpu().unbind(1)
        axes.scatter(across_, up, s=8, color="black", zorder=3)
        axes.set_title(titles[place], fontsize=7, color="crimson" if wrong and wrong[place] else "black")
        axes.set_aspect("equal", "datalim")
        axes.set_xticks([])
        axes.set_yticks([])
    save_figure(figure, path)


def draw_cycles(axes: Any, points: Tensor, chosen: Tensor, length: int, colour: str, width: float) -> None:
    """Closed lines through the chosen points, counted from 0: one line for every `length` points."""
    for start in range(0, len(chosen), max(length, 1)):
        part = chosen[start : start + length]
        corners = points[[*part.tolist(), int(part[0])]]
        axes.plot(corners[:, 0], corners[:, 1], color=colour, linewidth=width, solid_joinstyle="round")
