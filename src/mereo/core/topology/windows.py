"""Windows: which children each position of a convolution reads, and the way between maps and windows.

Children are numbered by type, row and column over the whole map, as `Grid` counts them. Inside a window they are
ordered by offset (row by row) and then by type, and a window that reaches beyond the map reads zeros there.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.core.kernels.kept import kept
from mereo.core.shapes import conv_out
from mereo.core.topology.base import CPU, Tiles
from mereo.core.topology.lines import PADDING, Line, Product, inside, product
from mereo.errors import UsageError


@dataclass(frozen=True)
class ConvolutionLine(Line):
    """Positions of a convolution along one axis, each of which reads a window of cells."""

    length: int
    positions: int
    kernel: int
    stride: int
    padding: int

    @property
    def sides(self) -> tuple[int, int]:
        return self.positions, self.length

    def sees(self, receiver: Tensor, sender: Tensor) -> Tensor:
        offset = sender - receiver * self.stride + self.padding
        return (offset >= 0) & (offset < self.kernel)

    def tiles(self, device: torch.device) -> tuple[Tensor, Tensor]:
        position = torch.arange(self.positions, device=device).unsqueeze(1)
        cells = position * self.stride - self.padding + torch.arange(self.kernel, device=device)
        return position, inside(cells, self.length)

    def covers(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The positions that read each cell, -1 for none, and the place of the cell in their windows."""
        # The offset of cell y in position p is y + padding - p stride: one for each residue, from the smallest on.
        cell = torch.arange(self.length, device=device).unsqueeze(1) + self.padding
        offset = cell % self.stride + self.stride * torch.arange(-(-self.kernel // self.stride), device=device)
        position = torch.div(cell - offset, self.stride, rounding_mode="floor")
        return torch.where(offset < self.kernel, inside(position, self.positions), PADDING), offset


@dataclass(frozen=True)
class Windows(Product):
    """The windows of a convolution over a map: each position attends to the cells that it reads.

    Args:
        rows, columns: of the map.
        kernel, stride, padding: down and across, as of a convolution.
        extra: zeros below and right of the map, beyond the padding.
    """

    rows: int
    columns: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    extra: tuple[int, int] = (0, 0)

    complete = False

    def __post_init__(self) -> None:
        if min(self.sides) < 1:
            raise UsageError(
                f"the map is {self.rows} x {self.columns} with padding {self.padding}, and kernel is {self.kernel};"
                " the kernel must fit into the padded map."
            )

    @property
    def sides(self) -> tuple[int, int]:
        """Rows and columns of the positions."""
        sizes = zip((self.rows, self.columns), self.kernel, self.stride, self.padding, self.extra, strict=True)
        rows, columns = (conv_out(side + more, *each) for side, *each, more in sizes)
        return rows, columns

    @property
    def lines(self) -> tuple[ConvolutionLine, ...]:
        axes = zip((self.rows, self.columns), self.sides, self.kernel, self.stride, self.padding, strict=True)
        return tuple(ConvolutionLine(*axis) for axis in axes)

    @property
    def count(self) -> int:
        """Number of positions, and so of windows."""
        return self.sides[0] * self.sides[1]

    @property
    def offsets(self) -> int:
        """Cells of a window."""
        return self.kernel[0] * self.kernel[1]

    @property
    def padded(self) -> bool:
        """Whether windows may reach beyond the map."""
        return any(self.padding) or any(self.extra)

    def gather(self, maps: Tensor) -> Tensor:
        """The cells that each window reads, zeros beyond the map.

        Shapes: (batch, types, ..., rows, columns) -> (batch * windows, offsets * types, ...).
        """
        if self.padded:
            (down, across), (below, right) = self.padding, self.extra
            maps = F.pad(maps, (across, across + right, down, down + below))
        if self.sides == (1, 1):
            cut = maps[..., : self.kernel[0], : self.kernel[1]]
            first = cut.dim() - 2
            return cut.permute(0, first, first + 1, *range(1, first)).flatten(1, 3)
        cut = maps.unfold(-2, self.kernel[0], self.stride[0]).unfold(-2, self.kernel[1], self.stride[1])
        first = cut.dim() - 4
        order = (0, *range(first, first + 4), *range(1, first))
        return cut.permute(order).flatten(3, 5).flatten(0, 2)

    def place(self, tiled: Tensor) -> Tensor:
        """The parents of each position, arranged as maps.

        Shapes: (batch * windows, types, ...) -> (batch, types, ..., rows of positions, columns of positions).
        """
        cut = tiled.unflatten(0, (-1, *self.sides))
        return cut.permute(0, *range(3, cut.dim()), 1, 2)

    def cells(self, device: torch.device = CPU) -> Tensor:
        """The cell of the map, row by row, under each offset of each window: int64 (windows, offsets), -1 outside."""
        return _cells(self, device)

    def covers(self, device: torch.device = CPU) -> Tensor:
        """The windows that read each cell: int64 (cells, most windows), window * offsets + offset, -1 for none."""
        return _covers(self, device)

    def of_types(self, in_types: int, out_types: int) -> Tiles:
        """Tiles of maps with several types of children and parents at each place, numbered by type, row and column."""
        cells, position = self.cells().unsqueeze(-1), torch.arange(self.count, device=CPU).unsqueeze(1)
        parents = torch.arange(out_types, device=CPU) * self.count + position
        children = torch.arange(in_types, device=CPU) * (self.rows * self.columns) + cells
        children = torch.where(cells < 0, PADDING, children).flatten(1)
        return Tiles(parents, children, out_types * self.count, in_types * self.rows * self.columns)

    def over_windows(self, sums: Tensor) -> Tensor:
        """log sum exp over all windows that read a child, given in each of them; outside the map only of its own.

        Shapes: (batch * windows, offsets * types) -> the same.
        """
        if self.count == 1:
            return sums
        cells, covers = self.cells(sums.device), self.covers(sums.device)
        apart = sums.unflatten(0, (-1, self.count)).unflatten(2, (self.offsets, -1)).flatten(1, 2)
        gathered = apart.index_select(1, covers.clamp(min=0).flatten()).unflatten(1, covers.shape)
        gathered = gathered.masked_fill((covers < 0)[..., None], torch.finfo(sums.dtype).min)
        whole = gathered.logsumexp(2).index_select(1, cells.clamp(min=0).flatten())
        if self.padded:
            whole = torch.where((cells < 0).flatten().unsqueeze(-1), apart, whole)
        return whole.unflatten(1, cells.shape).flatten(0, 1).flatten(1)


@kept()
def _cells(windows: Windows, device: torch.device) -> Tensor:
    down, across = (line.tiles(device)[1] for line in windows.lines)
    return product(down, across, windows.columns)


@kept()
def _covers(windows: Windows, device: torch.device) -> Tensor:
    (down, ky), (across, kx) = (line.covers(device) for line in windows.lines)
    down, ky, across, kx = down[:, None, :, None], ky[:, None, :, None], across[None, :, None, :], kx[None, :, None, :]
    entry = (down * windows.sides[1] + across) * windows.offsets + ky * windows.kernel[1] + kx
    return torch.where((down < 0) | (across < 0), PADDING, entry).flatten(2).flatten(0, 1)
