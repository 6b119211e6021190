"""Boxes drawn on their images, in the colours of the classes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from mereo.pictures import displayable, new_figure, save_figure

_MOST_NAMED = 20


def draw_boxes(
    images: Tensor,
    boxes: Mapping[str, Sequence[Tensor]],
    class_names: Sequence[str],
    path: Path,
    *,
    columns: int = 6,
    width: float = 1.6,
) -> None:
    """Rows of images, one below the other for each kind of boxes, with a legend of the classes.

    Args:
        images: float (batch, channels, height, width) in [0, 1].
        boxes: of each image (n, 5): the class, then corners in pixels; by kind, such as "predicted".
        class_names: by class number.
        path: of the picture.
        columns: images beside each other.
        width: of a column in inches.
    """
    from matplotlib.patches import Patch, Rectangle

    kinds, used = list(boxes), set[int]()
    blocks = -(-len(images) // columns)
    figure = new_figure(width * columns, (width + 0.12) * len(kinds) * blocks + 0.4)
    grid = figure.subplots(len(kinds) * blocks, columns, squeeze=False)
    for line, row in enumerate(grid):
        for column, axes in enumerate(row):
            axes.set_axis_off()
            sample, kind = line // len(kinds) * columns + column, kinds[line % len(kinds)]
            if sample >= len(images):
                continue
            axes.imshow(displayable(images[sample]), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            if column == 0:
                axes.set_title(kind, fontsize=7, loc="left", pad=2)
            for label, left, top, right, bottom in boxes[kind][sample].tolist():
                used.add(int(label))
                colour = _colour(int(label))
                corner = left - 0.5, top - 0.5
                axes.add_patch(Rectangle(corner, right - left, bottom - top, fill=False, lw=1.4, ec=colour))
    named = sorted(number for number in used if number < len(class_names))[:_MOST_NAMED]
    handles = [Patch(color=_colour(number), label=class_names[number]) for number in named]
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), columns), fontsize=7)
    save_figure(figure, path)


def _colour(label: int) -> str:
    """The name of a colour in matplotlib's cycle of ten."""
    return f"C{label % 10}"
