"""Masks drawn over their images, in the colours of the files that are written."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from mereo.data.decode import VOID
from mereo.data.motion import IGNORED
from mereo.pictures import displayable, new_figure, save_figure

_SHARE = 0.55
"""Share of the colour of a class in a pixel; the rest is the image."""
_MOST_NAMED = 20


def make_palette() -> Tensor:
    """The colours of Pascal VOC for 256 classes, black for the first: uint8 (256, 3).

    Bit 3 i + c of the number of a class is bit 7 - i of its colour c. The last, of pixels without a class, is white.
    """
    colours = torch.zeros(256, 3, dtype=torch.int64)
    numbers = torch.arange(256)
    for i in range(8):
        for channel in range(3):
            colours[:, channel] |= ((numbers >> (3 * i + channel)) & 1) << (7 - i)
    colours[VOID] = 255
    return colours.to(torch.uint8)


PALETTE = make_palette()


def overlay(images: Tensor, masks: Tensor) -> Tensor:
    """Grey images with the colours of masks over them; the first class and pixels without one show the image.

    Shapes: images float (batch, channels, height, width) in [0, 1], masks int64 (batch, height, width) -> (batch, 3,
    height, width).
    """
    plain = images.float().mean(1, keepdim=True).expand(-1, 3, -1, -1).cpu()
    masks = masks.cpu()
    colours = PALETTE[masks.clamp(min=0)].movedim(-1, 1) / 255
    covered = ((masks > 0) & (masks != IGNORED)).unsqueeze(1)
    return torch.where(covered, (1 - _SHARE) * plain + _SHARE * colours, plain)


def draw_masks(
    images: Tensor,
    masks: Mapping[str, Tensor],
    class_names: Sequence[str],
    path: Path,
    *,
    columns: int = 8,
    width: float = 1.15,
) -> None:
    """Rows of images above rows of the same images under each kind of masks, with a legend of the classes.

    Args:
        images: float (batch, channels, height, width) in [0, 1].
        masks: int64 (batch, height, width), by kind, such as "predicted".
        class_names: by class number.
        path: of the picture.
        columns: images beside each other.
        width: of a column in inches.
    """
    from matplotlib.patches import Patch

    rows = {"image": images, **{name: overlay(images, mask) for name, mask in masks.items()}}
    blocks = -(-len(images) // columns)
    figure = new_figure(width * columns, (width + 0.05) * len(rows) * blocks + 0.5)
    grid = figure.subplots(len(rows) * blocks, columns, squeeze=False)
    for place, (line, column) in enumerate((line, column) for line in range(len(grid)) for column in range(columns)):
        axes, sample = grid[line][column], line // len(rows) * columns + place % columns
        axes.set_axis_off()
        name = list(rows)[line % len(rows)]
        if sample < len(images):
            shown = displayable(rows[name][sample])
            axes.imshow(shown, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            if column == 0:
                axes.set_title(name, fontsize=7, loc="left")
    used = torch.unique(torch.cat([mask.flatten().cpu() for mask in masks.values()])).tolist()
    named = [number for number in used if 0 < number < len(class_names)][:_MOST_NAMED]
    handles = [Patch(color=(PALETTE[number] / 255).tolist(), label=class_names[number]) for number in named]
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), max(columns, 3)), fontsize=7)
    save_figure(figure, path)
