"""Blocks of a grid, each of which sees itself, groups spread over it, halos and blocks of a sequence.

Sources: windows and groups arXiv:2204.01697, halos arXiv:2103.12731, blocks of a sequence arXiv:1802.05751.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from mereo.core.topology.base import Tiles
from mereo.core.topology.lines import BlockLine, Line, Product, SpreadLine

Pair = tuple[int, int]


@dataclass(frozen=True)
class Blocks(Product):
    """Windows of neighbouring cells: cell (y, x) attends to the cells of window (y // P, x // Q).

    Args:
        grid: rows and columns; the last windows may be cut short.
        size: P and Q.
        number: windows down and across, those beyond the grid included; by default the least that covers the grid.
    """

    grid: Pair
    size: Pair
    number: Pair | None = None

    @property
    def lines(self) -> tuple[Line, ...]:
        axes = zip(self.grid, self.size, self.windows, strict=True)
        return tuple(BlockLine(length, block, number=number) for length, block, number in axes)

    @property
    def windows(self) -> Pair:
        """Windows down and across."""
        return self.number or (-(-self.grid[0] // self.size[0]), -(-self.grid[1] // self.size[1]))

    def cut(self, maps: Tensor) -> Tensor:
        """The cells of each window; zeros beyond the grid.

        Shapes: (batch, rows, columns, channels) -> (batch * windows, P * Q, channels).
        """
        maps = padded(maps, self.windows[0] * self.size[0], self.windows[1] * self.size[1])
        cut = maps.unflatten(2, (-1, self.size[1])).unflatten(1, (-1, self.size[0]))
        return cut.transpose(2, 3).reshape(-1, self.size[0] * self.size[1], maps.shape[3])

    def join(self, tiles: Tensor) -> Tensor:
        """The inverse of `cut`: (batch * windows, P * Q, channels) -> (batch, rows, columns, channels)."""
        cut = tiles.reshape(-1, *self.windows, *self.size, tiles.shape[-1]).transpose(2, 3)
        whole = cut.reshape(-1, self.windows[0] * self.size[0], self.windows[1] * self.size[1], tiles.shape[-1])
        return cropped(whole, *self.grid)


@dataclass(frozen=True)
class Spread(Product):
    """Groups of P x Q cells spread evenly: cell (y, x) attends to group (y % (rows / P), x % (columns / Q)).

    Args:
        grid: rows and columns; quotients are rounded up.
        size: P and Q.
    """

    grid: Pair
    size: Pair

    @property
    def lines(self) -> tuple[SpreadLine, ...]:
        return tuple(SpreadLine(*each) for each in zip(self.grid, self.size, strict=True))

    def cut(self, maps: Tensor) -> Tensor:
        """The cells of each group; zeros beyond the grid.

        Shapes: (batch, rows, columns, channels) -> (batch * groups, P * Q, channels).
        """
        maps = padded(maps, *(line.groups * line.size for line in self.lines))
        cut = maps.unflatten(2, (self.size[1], -1)).unflatten(1, (self.size[0], -1))
        return cut.permute(0, 2, 4, 1, 3, 5).reshape(-1, self.size[0] * self.size[1], maps.shape[3])

    def join(self, tiles: Tensor) -> Tensor:
        """The inverse of `cut`: (batch * groups, P * Q, channels) -> (batch, rows, columns, channels)."""
        rows, columns = (line.groups * line.size for line in self.lines)
        cut = tiles.reshape(-1, rows // self.size[0], columns // self.size[1], *self.size, tiles.shape[-1])
        return cropped(cut.permute(0, 3, 1, 4, 2, 5).reshape(-1, rows, columns, tiles.shape[-1]), *self.grid)


@dataclass(frozen=True)
class Halo(Product):
    """Blocks of an image that see themselves and a halo of cells around them.

    Args:
        grid: rows and columns of the senders.
        block: cells down and across a block.
        halo: cells that a block sees on each side.
        step: receivers are every `step`-th row and column; divides `block`.
    """

    grid: Pair
    block: int
    halo: int
    step: int = 1

    @property
    def lines(self) -> tuple[Line, ...]:
        return tuple(BlockLine(length, self.block, self.halo, self.halo, self.step) for length in self.grid)


@dataclass(frozen=True)
class SequenceBlocks(Product):
    """Blocks of a sequence that see themselves, the block before, and the one behind if they are not causal.

    Args:
        tokens: number of tokens; the last block may be shorter.
        block: tokens of a block.
        causal: whether a token sees none behind it.
    """

    tokens: int
    block: int
    causal: bool = False

    @property
    def lines(self) -> tuple[Line, ...]:
        behind = 0 if self.causal else self.block
        return (BlockLine(self.tokens, self.block, self.block, behind, causal=self.causal),)


def regions(blocks: Blocks, routes: Tensor) -> Tiles:
    """Blocks that attend to chosen blocks, others in every image.

    Args:
        routes: int64 (batch, blocks, k), the blocks that each block attends to.
    """
    cells = blocks.tiles(device=routes.device).receivers
    return Tiles(cells, cells[routes].flatten(2), *blocks.counts)


def padded(maps: Tensor, rows: int, columns: int) -> Tensor:
    """Maps (batch, rows, columns, channels) with zeros below and to the right, up to these sides."""
    down, across = rows - maps.shape[1], columns - maps.shape[2]
    return F.pad(maps, (0, 0, 0, across, 0, down)) if down or across else maps


def cropped(maps: Tensor, rows: int, columns: int) -> Tensor:
    """The first rows and columns of maps."""
    return maps if maps.shape[1:3] == (rows, columns) else maps[:, :rows, :columns]
