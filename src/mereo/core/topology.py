"""Who may talk to whom: index tables made once, at construction."""

import torch
from torch import Tensor

from mereo.errors import UsageError


def grid_groups(fine: tuple[int, int], coarse: tuple[int, int]) -> Tensor:
    """Which cells of a fine grid lie under each cell of a coarse one, both numbered row by row.

    Fine cell (r, c) lies under coarse cell (r // q, c // p), where q and p are the whole ratios of the sides; fine
    cells of a border beyond the coarse grid are left out.

    Args:
        fine, coarse: (rows, columns), each side of `fine` at least that of `coarse`.

    Shapes: -> int64 (coarse cells, fine cells under each).
    """
    q, p = fine[0] // coarse[0], fine[1] // coarse[1]
    if q < 1 or p < 1:
        raise UsageError(f"a fine grid of {fine} cannot lie under a coarse grid of {coarse}; it needs larger sides.")
    index = torch.arange(fine[0] * fine[1]).view(fine)[: q * coarse[0], : p * coarse[1]]
    return index.view(coarse[0], q, coarse[1], p).transpose(1, 2).reshape(coarse[0] * coarse[1], q * p)
