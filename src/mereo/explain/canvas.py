"""A blank sheet whose coordinates are inches, for pictures that are more than a grid of panels."""

from typing import Any

from torch import Tensor

from mereo.explain.layout import DPI
from mereo.pictures import displayable, new_figure


def new_canvas(width: float, height: float) -> tuple[Any, Any]:
    """A figure of this size, and axes over the whole of it from (0, 0) at its lower left to (width, height)."""
    figure = new_figure(width, height, layout=None, dpi=DPI)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    return figure, axes


def paste(axes: Any, image: Tensor, left: float, top: float, width: float, height: float) -> None:
    """An image (channels, height, width) in [0, 1] into a rectangle in inches, `top` being its upper edge."""
    axes.imshow(
        displayable(image), cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect="auto",
        extent=(left, left + width, top - height, top),
    )  # fmt: skip


def fitted(image: Tensor, side: float) -> tuple[float, float]:
    """Width and height in inches of an image that fills a square of this side as far as its proportions allow."""
    high, wide = image.shape[-2:]
    return side * min(1.0, wide / high), side * min(1.0, high / wide)
