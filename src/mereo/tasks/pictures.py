"""A grid of images with titles."""

from pathlib import Path

from torch import Tensor

from mereo.pictures import displayable, new_figure, save_figure


def draw_images(
    images: Tensor, titles: list[str], path: Path, columns: int = 8, wrong: list[bool] | None = None
) -> None:
    """A grid of images (batch, channels, height, width) in [0, 1] with a title above each, red if it is wrong."""
    rows = -(-len(images) // columns)
    figure = new_figure(1.15 * columns, 1.35 * rows)
    for place, axes in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
        axes.set_axis_off()
        if place < len(images):
            axes.imshow(displayable(images[place]), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            red = wrong is not None and wrong[place]
            axes.set_title(titles[place], fontsize=7, color="crimson" if red else "black")
    save_figure(figure, path)
