"""Positions of the senders of a model's couplings on the image, and maps of their values."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from mereo.core import Coupling, Grid
from mereo.errors import UsageError


class Box(NamedTuple):
    """A rectangle on the image, in pixels from its left and its top edge."""

    left: float
    top: float
    right: float
    bottom: float


def sender_places(model: nn.Module) -> dict[str, Grid | None]:
    """The grid of the senders of each coupling, by the coupling's name; None if they have no position."""
    return {name: module.senders for name, module in model.named_modules() if isinstance(module, Coupling)}


def box_of(cell: int, grid: Grid, height: int, width: int) -> Box:
    """The patch of the image that the sender in a cell of a grid reads, clipped to the image.

    The box is one step wide, or wide enough to reach from the first sender's centre to the edge of the image.
    """
    row, column = divmod(cell, grid.columns)
    half, x, y = max(grid.first, grid.step / 2), grid.first + column * grid.step, grid.first + row * grid.step
    return Box(max(x - half, 0), max(y - half, 0), min(x + half, width), min(y + half, height))


def on_grid(values: Tensor, grid: Grid, *, average: bool) -> Tensor:
    """Values of senders as a grid: the mean over the types at a place, or their sum; the prefix is left out.

    Shapes: (batch, senders) -> (batch, rows, columns).
    """
    values = values[..., grid.prefix :]
    if values.shape[-1] != grid.types * grid.rows * grid.columns:
        raise UsageError(
            f"values are of {values.shape[-1]} senders; the grid has {grid.types} x {grid.rows} x {grid.columns}."
        )
    by_type = values.unflatten(-1, (grid.types, grid.rows, grid.columns))
    return by_type.mean(-3) if average else by_type.sum(-3)


def spread(cells: Tensor, grid: Grid, height: int, width: int) -> Tensor:
    """A map over the image: every pixel takes the value of the sender whose centre is nearest.

    Pixels further than half a step beyond the outermost centres have no sender and stay 0.

    Shapes: (batch, rows, columns) -> (batch, height, width).
    """

    def nearest(side: int, count: int) -> tuple[Tensor, Tensor]:
        centres = torch.arange(side, device=cells.device) + 0.5
        index = ((centres - grid.first) / grid.step + 0.5).floor().long()
        return index.clamp(0, count - 1), (index >= 0) & (index < count)

    (rows, in_rows), (columns, in_columns) = nearest(height, grid.rows), nearest(width, grid.columns)
    return cells[:, rows[:, None], columns[None, :]] * (in_rows[:, None] & in_columns[None, :])
