"""Where the windows of Swin transformers of other libraries are on the image (arXiv:2103.14030, section 3.2).

These networks roll their map up and left, cut it into windows, and give attention the windows of all images as a batch.
The block, or the layer of attention itself, states the size of a window and the shift.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mereo.core import Call, Grid
from mereo.core.topology import Tiles
from mereo.core.topology.blocks import Blocks, Pair, padded

LEAST = 1e-30
"""Couplings of pairs that a mask rules out are smaller."""


def _pair(value: Any) -> Pair | None:
    """Down and across of a size that a network states as one number or as two."""
    try:
        down, across = value if isinstance(value, tuple | list) else (value, value)
        return int(down), int(across)
    except (TypeError, ValueError):
        return None


def _stated(network: nn.Module, name: str) -> tuple[Pair, Pair] | None:
    """The size of the windows and the shift of a layer, which it or the nearest block around it states."""
    while name:
        module = network.get_submodule(name)
        size, shift = (_pair(getattr(module, each, None)) for each in ("window_size", "shift_size"))
        if size and shift and min(size) > 0:
            return size, shift
        name = name.rpartition(".")[0]
    return None


def _counts(windows: int, size: Pair, image: Pair) -> Pair | None:
    """Windows down and across of which each covers as many pixels for every cell; None if they do not fit the image."""
    for down in range(1, windows + 1):
        across = windows // down
        pixels = image[0] / (down * size[0])
        if down * across == windows and pixels == image[1] / (across * size[1]) and pixels.is_integer():
            return down, across
    return None


def shifted_windows(rows: int, columns: int, size: Pair, shift: Pair) -> Tensor:
    """The cells of each window of a map, -1 for padding: int64 (windows, cells of a window)."""
    blocks = Blocks((rows, columns), size)
    down, across = blocks.windows
    numbers = torch.arange(1, rows * columns + 1).view(1, rows, columns, 1)
    numbers = padded(numbers, down * size[0], across * size[1])  # by zeros
    moved = (-shift[0] if down > 1 else 0, -shift[1] if across > 1 else 0)
    return blocks.cut(numbers.roll(moved, (1, 2))).squeeze(2) - 1


def placed_windows(network: nn.Module, call: Call, images: int, inputs: tuple[object, ...], image: Pair) -> Call | None:
    """A call of attention inside the windows of a Swin transformer, with its tiles and places; None for any other.

    Args:
        images: of the batch.
        inputs: of the layer of attention, which in torchvision is given the whole map.
        image: height and width.
    """
    stated = _stated(network, call.name.removesuffix(".coupling"))
    if stated is None or call.scores.shape[-2:] != (stated[0][0] * stated[0][1],) * 2 or len(call.scores) % images:
        return None
    size, shift = stated
    whole = inputs[0] if inputs else None
    if isinstance(whole, Tensor) and whole.dim() == 4 and len(whole) == images:
        rows, columns = whole.shape[1:3]
    elif (counts := _counts(len(call.scores) // images, size, image)) is not None:
        rows, columns = counts[0] * size[0], counts[1] * size[1]
    else:  # padded, by timm after the map was rolled, by others before
        return None
    cells, step = shifted_windows(rows, columns, size, shift), max(image[0] / rows, image[1] / columns)
    if len(cells) * images != len(call.scores):
        return None
    assert call.couplings is not None
    tiles, grid = Tiles(cells, cells, rows * columns, rows * columns), Grid(rows, columns, 1, step / 2, step)
    # A score of -100 rules out a pair that was rolled from opposite borders.
    return replace(call, tiles=tiles, senders=grid, receivers=grid, mask=call.couplings > LEAST)
