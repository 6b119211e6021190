"""The sheet on which an explanation is drawn: sizes in inches, so that every picture of a row is as large as the next.

header     titles of the columns
rows       image | bars | maps ... | rebuilt image
footer     scales of the maps, then the caption
"""

import textwrap
from dataclasses import dataclass
from typing import Any

from mereo.explain.panels import FAINT, INK
from mereo.pictures import new_figure

DPI = 160
BARS, GAP, MARGIN, HEADER, CAPTION_LINE = 1.55, 0.2, 0.12, 0.52, 0.16
LETTERS = 19
"""Letters of a caption in an inch."""
NARROWEST = 1.3
"""Width of a column, so that the titles of neighbours do not meet."""
TICKS = 0.22
"""Height of the numbers below the bars and the scales of the maps."""


@dataclass(frozen=True)
class Sheet:
    """A figure and the positions on it.

    Attributes:
        figure: a matplotlib Figure.
        axes: one list a row.
        lefts, widths: of the columns, in inches.
        bottom: of the last row, in inches from the lower edge.
        size: width and height in inches.
    """

    figure: Any
    axes: list[list[Any]]
    lefts: list[float]
    widths: list[float]
    bottom: float
    size: tuple[float, float]

    def place(self, left: float, bottom: float, width: float, height: float) -> Any:
        """New axes at a place given in inches."""
        w, h = self.size
        return self.figure.add_axes((left / w, bottom / h, width / w, height / h))

    def write(self, x: float, y: float, text: str, **style: Any) -> None:
        """Text at a place given in inches."""
        self.figure.text(x / self.size[0], y / self.size[1], text, **style)

    def head(self, titles: list[tuple[str, str]]) -> None:
        """A title and a fainter line over each column."""
        base = self.size[1] - HEADER + 0.08
        for left, width, (title, note) in zip(self.lefts, self.widths, titles, strict=True):
            x = left + width / 2
            self.write(x, base, note, ha="center", va="bottom", fontsize=7, color=FAINT)
            self.write(x, base + 0.14, title, ha="center", va="bottom", fontsize=9, color=INK, weight="bold")

    def scale_bar(self, column: int, scale: Any, label: str) -> None:
        """The scale of a column of maps, below it."""
        from matplotlib.ticker import MaxNLocator

        left, width = self.lefts[column], self.widths[column]
        axes = self.place(left + 0.06 * width, self.bottom - 0.16, 0.88 * width, 0.07)
        # A common power of ten would be written on the label.
        ticks = {"ticks": MaxNLocator(3, steps=[1, 2, 5, 10]), "format": "{x:g}"}
        bar = self.figure.colorbar(scale, cax=axes, orientation="horizontal", **ticks)
        bar.outline.set(edgecolor="#d0d7de", linewidth=0.6)
        axes.tick_params(length=0, labelsize=6.5, colors=FAINT, pad=2)
        self.write(left + width / 2, self.bottom - 0.32, label, ha="center", va="top", fontsize=7, color=INK)


def make_sheet(
    rows: int, image_size: tuple[int, int], pictures: int, maps: bool, titled: bool, letters: int, caption: list[str]
) -> Sheet:
    """A sheet with its caption: one picture, the bars, then `pictures` - 1 more pictures in each of `rows`.

    Args:
        rows: how many images.
        image_size: (height, width); pictures have its proportions, up to 1 : 3.
        pictures: pictures in a row.
        maps: whether scales stand below the columns.
        titled: whether each image has a line above it.
        letters: in the longest name next to the bars.
        caption: sentences at the foot, each on a line of its own, or on several where the sheet is narrow.
    """
    tall = min(max(image_size[0] / image_size[1], 1 / 3), 3.0)
    wide = 1.4 * min(1.0, tall**-0.5) if tall > 1 else 1.4
    high = max(wide * tall, 1.1)
    names = GAP + 0.08 + 0.065 * letters
    column = max(wide, NARROWEST)
    widths = [column, BARS, *[column] * (pictures - 1)]
    lefts = [MARGIN]
    for n, width in enumerate(widths[:-1]):
        lefts.append(lefts[-1] + width + (names if n == 0 else GAP))
    gap = 0.1 + 0.17 * titled
    width = lefts[-1] + widths[-1] + MARGIN
    lines = [line for sentence in caption for line in textwrap.wrap(sentence, int(LETTERS * width))]
    bottom = len(lines) * CAPTION_LINE + 0.14 + (0.48 if maps else TICKS)
    height = HEADER + 0.17 * titled + rows * high + (rows - 1) * gap + bottom
    figure = new_figure(width, height, layout=None, dpi=DPI)
    sheet = Sheet(figure, [], lefts, widths, bottom, (width, height))
    for n, line in enumerate(reversed(lines)):
        sheet.write(MARGIN, 0.08 + n * CAPTION_LINE, line, ha="left", va="bottom", fontsize=7, color=FAINT)
    for row in range(rows):
        y = bottom + (rows - 1 - row) * (high + gap)
        sheet.axes.append([sheet.place(left, y, w, high) for left, w in zip(lefts, widths, strict=True)])
    return sheet
