"""A grid of images with titles."""

from pathlib import Path

from torch import Tensor

from mereo.pictures import fitted, new_canvas, paste, save_figure

WIDTH, SIDE, TITLE = 1.15, 1.05, 0.3
"""Inches: the width of a column, the longer side of an image, and the height of a title of two lines."""


def draw_images(
    images: Tensor,
    titles: list[str],
    path: Path,
    columns: int = 8,
    wrong: list[bool] | None = None,
    side: float = SIDE,
) -> None:
    """A grid of images (batch, channels, height, width) in [0, 1] with a title above each, red if it is wrong.

    Args:
        side: of the longer side of an image, in inches.
    """
    rows, width = -(-len(images) // columns), WIDTH - SIDE + side
    wide, high = fitted(images, side)
    title = max(TITLE, TITLE / 2 * max((text.count("\n") + 1 for text in titles), default=1))
    figure, canvas = new_canvas(width * columns, rows * (high + title))
    for place, image in enumerate(images):
        row, column = divmod(place, columns)
        middle, top = width * (column + 0.5), (rows - row) * (high + title) - title
        paste(canvas, image, middle - wide / 2, top, wide, high)
        red = wrong is not None and wrong[place]
        canvas.text(
            middle, top + 0.03, titles[place], fontsize=7, color="crimson" if red else "black", ha="center",
            va="bottom", parse_math=False,
        )  # fmt: skip
    save_figure(figure, path)
