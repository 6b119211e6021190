"""What every picture needs: a figure without a display, a file written whole, an image as matplotlib takes it."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mereo.files import write_atomically

if TYPE_CHECKING:
    from torch import Tensor


Layout = Literal["constrained"] | None


def new_figure(width: float, height: float, layout: Layout = "constrained", dpi: int = 130) -> Any:
    """A white matplotlib figure of that size in inches."""
    # The object-oriented interface leaves no global state behind, and needs no display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path) -> None:
    """A matplotlib figure as PNG, written whole."""
    content = io.BytesIO()
    figure.savefig(content, format="png")
    write_atomically(path, content.getvalue())


def whole_ticks(axis: Any) -> None:
    """Whole numbers alone on an axis, also where there is but one."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def plain_log(axis: Any) -> None:
    """A logarithmic axis whose ticks are written as people write them: 0.5, 20, 1,000."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:,.6g}")
    axis.set_minor_formatter(NullFormatter())


def displayable(image: "Tensor") -> Any:
    """(channels, height, width) in [0, 1] as an array that matplotlib shows: grey, RGB, or the mean of the channels."""
    image = image.detach().float().clamp(0, 1).cpu()
    return image.permute(1, 2, 0).numpy() if image.shape[0] == 3 else image.mean(0).numpy()
