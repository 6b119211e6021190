"""Positions of senders and receivers on an image."""

from typing import NamedTuple

import torch
from torch import Tensor

from mereo.errors import UsageError


def grid_groups(fine: tuple[int, int], coarse: tuple[int, int]) -> Tensor:
    """Which cells of a fine grid are under each cell of a coarse one, both numbered row by row.

    Fine cell (r, c) is under coarse cell (r // q, c // p), where q and p are the whole ratios of the sides; fine
    cells of a border beyond the coarse grid are left out.

    Args:
        fine, coarse: (rows, columns), each side of `fine` at least `coarse`'s.

    Shapes: -> int64 (coarse cells, fine cells under each).
    """
    q, p = fine[0] // coarse[0], fine[1] // coarse[1]
    if q < 1 or p < 1:
        raise UsageError(f"a fine grid of {fine} does not fit under a coarse grid of {coarse}; it needs larger sides.")
    index = torch.arange(fine[0] * fine[1]).view(fine)[: q * coarse[0], : p * coarse[1]]
    return index.view(coarse[0], q, coarse[1], p).transpose(1, 2).reshape(coarse[0] * coarse[1], q * p)


class Grid(NamedTuple):
    """Positions of the senders or receivers of a coupling on the image, numbered by type, then row, then column.

    Attributes:
        rows, columns, types: there are types * rows * columns of them, and `prefix` more.
        first: centre of the top left one in pixels from the image's top and left edge, to within a pixel.
        step: pixels from one to the next, down and across.
        feeds: for senders, None when the receivers are the classes; else the place of the first receiver among the fine
            capsules (cross-agreement) or the senders of the class routing, or of the routing `through`.
        prefix: number of entries before the grid that have no position, such as a class token.
        through: name of the coupling whose senders the receivers are, if it is not the class routing.
        after: positions of further entries on a grid of their own, such as the capsules of a coarser map.
    """

    rows: int
    columns: int
    types: int
    first: float
    step: float
    feeds: int | None = None
    prefix: int = 0
    through: str | None = None
    after: "Grid | None" = None

    @property
    def size(self) -> int:
        """How many there are, those without a position and those after them included."""
        rest = 0 if self.after is None else self.after.size
        return self.prefix + self.types * self.rows * self.columns + rest

    @property
    def parts(self) -> "list[tuple[int, Grid]]":
        """Each grid, without its `after`, and the index of the first entry on it."""
        end = self.prefix + self.types * self.rows * self.columns
        rest = [] if self.after is None else [(end + start, grid) for start, grid in self.after.parts]
        return [(self.prefix, self._replace(prefix=0, after=None)), *rest]
