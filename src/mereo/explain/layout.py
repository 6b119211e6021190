"""The sheet on which an explanation is drawn, laid out by matplotlib: one row an image, and the caption below.

image | bars | maps ... | rebuilt image
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mereo.explain.panels import FAINT, INK
from mereo.pictures import new_figure

DPI = 160
WIDE, BARS, NAME = 1.6, 1.55, 0.065
"""Width of a picture and of the bars, and the width that a letter of a name needs, in inches."""
LETTERS = 19
"""Letters of a caption in an inch."""


@dataclass(frozen=True)
class Sheet:
    """A figure and its panels, one list a row."""

    figure: Any
    axes: list[list[Any]]

    def head(self, titles: list[tuple[str, str]]) -> None:
        """A title and a fainter line over each column."""
        style = {"xycoords": "axes fraction", "textcoords": "offset points", "ha": "center"}
        for axes, (title, note) in zip(self.axes[0], titles, strict=True):
            axes.annotate(note, (0.5, 1), (0, 16), fontsize=7, color=FAINT, **style)
            axes.annotate(title, (0.5, 1), (0, 26), fontsize=9, color=INK, weight="bold", **style)

    def scale_bar(self, column: int, scale: Any, label: str) -> None:
        """The scale of a column of maps, below it."""
        from matplotlib.ticker import MaxNLocator

        # A common power of ten would be written on the label.
        ticks = {"ticks": MaxNLocator(3, steps=[1, 2, 5, 10]), "format": "{x:g}"}
        below = [row[column] for row in self.axes]
        place = {"location": "bottom", "shrink": 0.88, "aspect": 18, "pad": 0.01, "panchor": False}
        bar = self.figure.colorbar(scale, ax=below, **place, **ticks)
        bar.outline.set(edgecolor="#d0d7de", linewidth=0.6)
        bar.ax.tick_params(length=0, labelsize=6.5, colors=FAINT, pad=2)
        bar.set_label(label, fontsize=7, color=INK)


def caption_lines(caption: Sequence[str], width: float) -> list[str]:
    """Sentences as lines that fit on a picture of so many inches."""
    return [line for sentence in caption for line in textwrap.wrap(sentence, int(LETTERS * width))]


def make_sheet(rows: int, image_size: tuple[int, int], pictures: int, letters: int, caption: list[str]) -> Sheet:
    """A sheet with its caption: one picture, the bars, then `pictures` - 1 more pictures in each of `rows`.

    Args:
        rows: how many images.
        image_size: (height, width); pictures have its proportions, up to 1 : 3.
        pictures: pictures in a row.
        letters: in the longest name next to the bars.
        caption: sentences at the foot, each on a line of its own, or on several if the sheet is narrow.
    """
    tall = min(max(image_size[0] / image_size[1], 1 / 3), 3.0)
    wide = WIDE * min(1.0, tall**-0.5)
    width = pictures * max(wide, 1.3) + BARS + NAME * letters
    lines = caption_lines(caption, width)
    high = max(wide * tall, 1.2)
    figure = new_figure(width, rows * (high + 0.2) + 0.16 * len(lines) + 1.0, dpi=DPI)
    axes = figure.subplots(rows, pictures + 1, squeeze=False, width_ratios=[1, BARS / wide, *[1] * (pictures - 1)])
    for row in axes:
        row[1].set_box_aspect(high / BARS)
        for panel in row:
            panel.set_anchor("N")
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=7, color=FAINT, linespacing=1.5)
    return Sheet(figure, [list(row) for row in axes])
