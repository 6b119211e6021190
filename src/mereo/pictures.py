"""Helpers of all pictures: figures without a display, atomic files, images in the form matplotlib takes."""

import functools
import io
import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mereo.escape import cut, for_terminal
from mereo.files import write_atomically

if TYPE_CHECKING:
    from torch import Tensor


Layout = Literal["constrained"] | None
MOST_DOTS, MOST_DOTS_ACROSS = 2**26, 2**15
"""Largest picture: a quarter of a gigabyte of memory, and half of what matplotlib can draw."""
LONGEST_TEXT = 300
"""Longest line of text in a picture, in characters; the middle of a longer line is left out."""

_POWER = re.compile(r"\$\\mathdefault\{[-\u2212]?(\d+(\.\d+)?\\times)?10\^\{[-\u2212]?\d+\}\}\$")
"""Tick labels of matplotlib's logarithmic axes, the only formula that is drawn as one."""


@functools.cache
def _canvas() -> Any:
    """The class of a canvas that draws every text literally.

    Names of classes and files appear in titles, tick labels and legends. matplotlib reads a formula between any two
    dollar signs, and fails if it is invalid or if bytes are not UTF-8. All text passes through the renderer, including
    ticks created while drawing, so the renderer treats it as plain text.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg

    def plain(text: str) -> str:
        return cut(for_terminal(text), LONGEST_TEXT)

    def is_power(text: str) -> bool:
        return _POWER.fullmatch(text) is not None

    class Renderer(RendererAgg):
        def get_text_width_height_descent(self, s: str, prop: Any, ismath: Any) -> Any:
            return super().get_text_width_height_descent(plain(s), prop, is_power(s))

        def draw_text(
            self, gc: Any, x: float, y: float, s: str, prop: Any, angle: float, ismath: Any = False, mtext: Any = None
        ) -> None:
            super().draw_text(gc, x, y, plain(s), prop, angle, is_power(s), mtext)

    class Canvas(FigureCanvasAgg):
        def get_renderer(self) -> Any:
            renderer = super().get_renderer()
            renderer.__class__ = Renderer
            return renderer

    return Canvas


def new_figure(width: float, height: float, layout: Layout = "constrained", dpi: int = 130) -> Any:
    """A white matplotlib figure of that size in inches; a very large one has fewer dots to an inch."""
    # The object-oriented interface leaves no global state behind, and needs no display.
    from matplotlib.figure import Figure

    dpi = max(min(dpi, int((MOST_DOTS / (width * height)) ** 0.5), int(MOST_DOTS_ACROSS / max(width, height))), 1)
    figure = Figure(figsize=(width, height), dpi=dpi, layout=layout, facecolor="white")
    _canvas()(figure)
    return figure


def grid_of_panels(
    count: int, across: int, panel: tuple[float, float], margin: tuple[float, float] = (0, 0), *, blocks: int = 1,
    **given: Any,
) -> tuple[Any, list[list[Any]]]:  # fmt: skip
    """A figure, and the axes of `count` panels in each of its blocks; places left over are hidden.

    Args:
        count: panels of a block.
        across: most panels next to each other.
        panel, margin: width and height of a panel and of the rest of the figure, in inches.
        blocks: one below the other.
        given: to matplotlib's `subplots`.
    """
    across = min(count, across)
    down = -(-count // across)
    figure = new_figure(panel[0] * across + margin[0], panel[1] * down * blocks + margin[1])
    axes = list(figure.subplots(blocks * down, across, squeeze=False, **given).flat)
    parts = [axes[start : start + across * down] for start in range(0, len(axes), across * down)]
    for part in parts:
        for unused in part[count:]:
            unused.set_visible(False)
    return figure, [part[:count] for part in parts]


def row_of_panels(titles: Iterable[str], width: float, height: float, **given: Any) -> tuple[Any, list[Any]]:
    """A figure and its panels side by side, each `width` inches wide, with their titles."""
    names = list(titles)
    figure, (panels,) = grid_of_panels(len(names), len(names), (width, height), **given)
    for axes, name in zip(panels, names, strict=True):
        axes.set_title(name, fontsize=9, loc="left")
    return figure, panels


def new_canvas(width: float, height: float, dpi: int = 130) -> tuple[Any, Any]:
    """A figure of this size, and axes over the whole of it in inches, from (0, 0) at its lower left.

    For pictures that are more than a grid of panels, and for many small images: laying out axes for each takes seconds.
    """
    figure = new_figure(width, height, layout=None, dpi=dpi)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    return figure, axes


def paste(axes: Any, image: "Tensor", left: float, top: float, width: float, height: float) -> None:
    """An image (channels, height, width) in [0, 1] into a rectangle of a canvas, `top` being its upper edge."""
    axes.imshow(
        displayable(image), cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect="auto",
        extent=(left, left + width, top - height, top),
    )  # fmt: skip


def fitted(image: "Tensor", side: float) -> tuple[float, float]:
    """Width and height of an image, or of each of several, that fills a square as far as its proportions allow."""
    high, wide = image.shape[-2:]
    return side * min(1.0, wide / high), side * min(1.0, high / wide)


def png_of(figure: Any) -> bytes:
    """A matplotlib figure as PNG."""
    content = io.BytesIO()
    with warnings.catch_warnings():
        # A name may be in any script; characters missing from the font are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        figure.savefig(content, format="png", metadata={"Software": "mereo, matplotlib"})
    return content.getvalue()


def with_palette(png: bytes) -> bytes:
    """A PNG with 256 colours, whose file is a third as large; for pages with many pictures."""
    from PIL import Image

    content = io.BytesIO()
    with Image.open(io.BytesIO(png)) as picture:
        reduced = picture.convert("RGB").quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        reduced.save(content, format="PNG", optimize=True)
    return content.getvalue()


def save_figure(figure: Any, path: Path) -> None:
    """Write a matplotlib figure as PNG, atomically."""
    write_atomically(path, png_of(figure))


def whole_ticks(axis: Any) -> None:
    """Only whole numbers on an axis, even if there is just one."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def plain_log(axis: Any) -> None:
    """A logarithmic axis with plain numbers at its ticks: 0.5, 20, 1,000."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:,.6g}")
    axis.set_minor_formatter(NullFormatter())


def displayable(image: "Tensor") -> Any:
    """(channels, height, width) in [0, 1] as an array that matplotlib shows: grey, RGB, or the mean of the channels.

    Two channels are the views of two cameras, shown in red and cyan: grey where they agree.
    """
    image = image.detach().float().clamp(0, 1).cpu()
    if image.shape[0] == 2:
        image = image[[0, 1, 1]]
    return image.permute(1, 2, 0).numpy() if image.shape[0] == 3 else image.mean(0).numpy()
