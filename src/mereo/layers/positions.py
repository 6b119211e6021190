"""Tables of positions for images of another size."""

import torch.nn.functional as F
from torch import Tensor

from mereo.errors import UsageError


def resize_positions(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """A table of positions for a grid of another size, by bicubic interpolation with antialiasing, as timm does.

    Args:
        table: one row for each cell, row by row.
        old, new: (rows, columns) of the grids.

    Shapes: (1, rows * columns of old, dim) -> (1, rows * columns of new, dim), of the same type.
    """
    if table.dim() != 3 or table.shape[1] != old[0] * old[1]:
        raise UsageError(f"the table of positions is {tuple(table.shape)}, and its grid is {old[0]} x {old[1]}.")
    if old == new:
        return table
    maps = table.float().unflatten(1, old).permute(0, 3, 1, 2)
    resized = F.interpolate(maps, size=new, mode="bicubic", antialias=True, align_corners=False)
    return resized.flatten(2).transpose(1, 2).to(table.dtype)
