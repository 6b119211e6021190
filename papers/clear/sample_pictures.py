"""Samples of a diffusion transformer with full attention and with attention to circles, from the same noise."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from mereo.pictures import displayable, new_figure, save_figure


def draw_samples(rows: Mapping[str, Tensor], path: Path) -> None:
    """A row of images for each network.

    Shapes: images (count, channels, height, width) in [0, 1].
    """
    count = len(next(iter(rows.values())))
    figure = new_figure(0.8 * count + 1.8, 0.85 * len(rows) + 0.3)
    grid = figure.subplots(len(rows), count, squeeze=False)
    for axes_row, (name, images) in zip(grid, rows.items(), strict=True):
        axes_row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
        for axes, image in zip(axes_row, images, strict=True):
            axes.imshow(displayable(image), cmap="gray", vmin=0, vmax=1)
            axes.set_xticks([])
            axes.set_yticks([])
    save_figure(figure, path)
