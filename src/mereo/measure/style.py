"""The style of the pictures of an evaluation."""

import textwrap
from typing import Any

INK, FAINT, RULE = "#24292f", "#6e7781", "#e9ecef"
RIGHT, WRONG = "#2b8a3e", "#e03131"
MODELS = ("#1971c2", "#e8590c", "#2b8a3e", "#9c36b5", "#c2255c", "#0c8599", "#846358", "#495057")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

TITLE_LETTERS = 11
"""Letters to the inch in a title above a figure."""


def figure_title(figure: Any, title: str, width: float) -> None:
    """A title above all panels of a figure `width` inches wide, wrapped to fit."""
    lines = textwrap.fill(title, int(TITLE_LETTERS * width))
    figure.suptitle(lines, fontsize=10, color=INK, fontweight="bold", x=0.01, ha="left")


def quiet(axes: Any, title: str, x: str, y: str, grid: str = "both") -> None:
    """A title on the left, labelled axes, faint rules and no frame."""
    axes.set_title(title, fontsize=10, color=INK, loc="left", fontweight="bold")
    axes.set_xlabel(x, fontsize=8.5, color=FAINT)
    axes.set_ylabel(y, fontsize=8.5, color=FAINT)
    axes.tick_params(length=0, labelsize=8, colors=FAINT)
    if grid:
        axes.grid(axis=grid, color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)


def colour(place: int) -> str:
    """The colour of the model at that position."""
    return MODELS[place % len(MODELS)]


def marker(place: int) -> str:
    """The marker of the model at that position."""
    return MARKERS[place % len(MARKERS)]
