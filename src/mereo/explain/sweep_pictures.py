"""A pose sweep as a picture: a row for each dimension of the class capsule, a column for each offset."""

from pathlib import Path

import torch.nn.functional as F
from torch import Tensor

from mereo.errors import UsageError
from mereo.explain.layout import DPI
from mereo.explain.panels import FAINT, INK, PREDICTED, printable, short
from mereo.pictures import fitted, new_canvas, paste, save_figure

CELL, LEFT, TOP, BOTTOM, MARGIN = 0.56, 1.95, 0.74, 0.12, 0.12


def _mosaic(images: Tensor) -> Tensor:
    """Images (rows, columns, channels, height, width) side by side, each with white on its right and below."""
    side = max(images.shape[-2:])
    framed = F.pad(images.float().cpu(), (0, max(side // 16, 1), 0, max(side // 16, 1)), value=1.0)
    return framed.permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2)


def draw_pose_sweep(
    images: Tensor, offsets: Tensor, original: Tensor, path: str | Path, *, title: str = "", note: str = ""
) -> Path:
    """Draw the images decoded as the dimensions of one class capsule are moved, as PNG.

    Args:
        images, offsets: of one image, `PoseSweep.images[i]` and `PoseSweep.offsets`.
        original: the image itself, in [0, 1].
        path: of the file.
        title: above the image.
        note: below the image, for example which capsule was moved.

    Shapes: images (pose, steps, channels, height, width), offsets (steps,), original (channels, height, width).
    """
    if images.dim() != 5 or len(offsets) != images.shape[1]:
        raise UsageError(
            f"images are {tuple(images.shape)} for {len(offsets)} offsets; give the sweep of one image, (pose, steps,"
            " channels, height, width)."
        )
    rows, columns = images.shape[:2]
    wide, high = fitted(images[0, 0], CELL)
    width, body = max(LEFT + columns * wide + MARGIN, 4.4), rows * high
    height = TOP + max(body, 2.0) + BOTTOM
    figure, canvas = new_canvas(width, height, DPI)
    paste(canvas, _mosaic(images), LEFT, height - TOP, columns * wide, body)
    for column, offset in enumerate(offsets.tolist()):
        still = abs(offset) < 1e-9
        canvas.text(
            LEFT + (column + 0.5) * wide, height - TOP + 0.05, "0" if still else f"{offset:+.2f}", ha="center",
            va="bottom", fontsize=7, color=PREDICTED if still else FAINT, weight="bold" if still else "normal",
        )  # fmt: skip
    for row in range(rows):
        y = height - TOP - (row + 0.5) * high
        canvas.text(LEFT - 0.07, y, str(row), ha="right", va="center_baseline", fontsize=7, color=FAINT)
    heading = {"fontsize": 8, "color": INK, "weight": "bold", "ha": "center"}
    canvas.text(LEFT + columns * wide / 2, height - TOP + 0.22, "added to that dimension", va="bottom", **heading)
    canvas.text(LEFT - 0.32, height - TOP - body / 2, "dimension of the pose", va="center", rotation=90, **heading)
    canvas.text(
        MARGIN, height - 0.1, printable(short(title, 60)), ha="left", va="top", fontsize=8.5, color=INK, weight="bold",
        parse_math=False,
    )  # fmt: skip
    size = fitted(original, 1.2)
    paste(canvas, original, MARGIN, height - TOP, *size)
    below = "\n".join(map(printable, note.splitlines()))
    canvas.text(
        MARGIN, height - TOP - size[1] - 0.06, below, ha="left", va="top", fontsize=7, color=FAINT,
        parse_math=False,
    )  # fmt: skip
    save_figure(figure, Path(path))
    return Path(path)
