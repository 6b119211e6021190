"""Tiles: groups of receivers, each of which attends to a group of senders of its own, such as the windows of an image.

Attention inside tiles computes couplings of the shape (batch * tiles, heads, receivers of a tile, senders of a tile).
`Tiles` knows which receivers and senders these are, so that `mereo.record` can show them over the whole image.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mereo.errors import UsageError

LARGEST_DENSE = 2**24 - 1
"""Entries of a map of couplings beyond which `Tiles.place` gives a sparse tensor: 64 x 64 tokens of one head have more
(64 MiB in float32)."""


@dataclass(frozen=True, eq=False)
class Tiles:
    """Which receivers and senders each tile holds, by their number in the whole image; -1 is padding.

    Args:
        receivers: int64 (tiles, receivers of a tile), (batch, tiles, receivers of a tile) where images differ, or
            (batch, heads, tiles, receivers of a tile) where heads differ as well.
        senders: int64 (tiles, senders of a tile), or with further axes likewise.
        num_receivers, num_senders: how many there are in the whole image.
    """

    receivers: Tensor
    senders: Tensor
    num_receivers: int
    num_senders: int

    @property
    def count(self) -> int:
        """Number of tiles."""
        return self.receivers.shape[-2]

    @property
    def exclusive(self) -> bool:
        """Whether no receiver is in more than one tile, so that `pick` undoes `place`."""
        numbers = self.receivers.reshape(-1, self.count * self.receivers.shape[-1]).sort(-1).values
        return not bool(((numbers[:, 1:] == numbers[:, :-1]) & (numbers[:, 1:] >= 0)).any())

    def _pairs(self, batch: int, device: torch.device) -> Tensor:
        """Number of each pair in the flat map of an image: int64 (batch or 1, heads or 1, tiles, r, s); padding is one
        past it."""
        receivers, senders = (
            x.unsqueeze(1) if x.dim() == 3 else x.view(1, 1, *x.shape) if x.dim() == 2 else x
            for x in (self.receivers.to(device), self.senders.to(device))
        )
        receivers, senders = receivers.unsqueeze(-1), senders.unsqueeze(-2)
        pairs = receivers * self.num_senders + senders
        pairs = torch.where((receivers < 0) | (senders < 0), self.num_receivers * self.num_senders, pairs)
        if pairs.shape[0] not in (1, batch):
            raise UsageError(f"tiles are of {pairs.shape[0]} images, and the couplings of {batch}.")
        return pairs

    def place(self, couplings: Tensor, sparse: bool | None = None) -> Tensor:
        """Couplings of tiles over the whole image; pairs that share no tile are 0, pairs of several tiles are added.

        Args:
            sparse: whether the result is a sparse tensor; by default where a dense one has more than LARGEST_DENSE
                entries.

        Shapes: (batch * tiles, heads, r, s) -> (batch, heads, receivers, senders).
        """
        tiled = couplings.unflatten(0, (-1, self.count)).transpose(1, 2)
        batch, heads = tiled.shape[:2]
        entries = self.num_receivers * self.num_senders
        pairs = self._pairs(batch, couplings.device)
        if sparse if sparse is not None else batch * heads * entries > LARGEST_DENSE:
            index = pairs.expand_as(tiled).reshape(-1)
            image = torch.arange(batch * heads, device=couplings.device).repeat_interleave(tiled[0, 0].numel())
            kept = index < entries
            image, index = image[kept], index[kept]
            places = torch.stack((image // heads, image % heads, index // self.num_senders, index % self.num_senders))
            size = (batch, heads, self.num_receivers, self.num_senders)
            return torch.sparse_coo_tensor(places, tiled.reshape(-1)[kept], size, check_invariants=False).coalesce()
        index = pairs.flatten(2).expand(batch, heads, -1)
        whole = couplings.new_zeros(batch, heads, entries + 1).scatter_add(2, index, tiled.flatten(2))
        return whole[..., :-1].unflatten(-1, (self.num_receivers, self.num_senders))

    def pick(self, couplings: Tensor, padding: Tensor) -> Tensor:
        """The inverse of `place`: entries of a map over the whole image as tiles, and `padding` where there are none.

        Shapes: couplings (batch, heads, receivers, senders), padding (batch * tiles, heads, r, s) -> as padding.
        """
        batch, heads = couplings.shape[:2]
        pairs = self._pairs(batch, couplings.device)
        flat = torch.cat((couplings.flatten(2), couplings.new_zeros(batch, heads, 1)), 2)
        picked = flat.gather(2, pairs.flatten(2).expand(batch, heads, -1))
        picked = picked.unflatten(2, pairs.shape[2:]).transpose(1, 2).flatten(0, 1)
        outside = (pairs == self.num_receivers * self.num_senders).expand(batch, -1, -1, -1, -1).transpose(1, 2)
        return torch.where(outside.flatten(0, 1), padding, picked)


def _numbers(rows: int, columns: int, down: int, across: int) -> Tensor:
    """Numbers of the cells of an image padded to whole tiles: int64 (1, rows, columns, 1); padding is -1."""
    padded = torch.full((1, rows + -rows % down, columns + -columns % across, 1), -1)
    padded[0, :rows, :columns, 0] = torch.arange(rows * columns).view(rows, columns)
    return padded


def window_tiles(rows: int, columns: int, size: tuple[int, int]) -> Tiles:
    """The windows of an image row by row; an image that they do not divide is padded below and right."""
    cells = to_windows(_numbers(rows, columns, *size), size).squeeze(-1)
    return Tiles(cells, cells, rows * columns, rows * columns)


def grid_tiles(rows: int, columns: int, size: tuple[int, int]) -> Tiles:
    """The groups of `to_grid`: each has `size` cells, spread evenly over the image."""
    cells = to_grid(_numbers(rows, columns, *size), size).squeeze(-1)
    return Tiles(cells, cells, rows * columns, rows * columns)


def _check(maps: Tensor, size: tuple[int, int]) -> None:
    if maps.dim() != 4 or maps.shape[1] % size[0] or maps.shape[2] % size[1]:
        raise UsageError(
            f"maps are {tuple(maps.shape)}; they must be (batch, rows, columns, channels) with rows a multiple of"
            f" {size[0]} and columns one of {size[1]}."
        )


def to_windows(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut maps into windows of neighbouring cells: cell (y, x) goes to window (y // P, x // Q).

    Shapes: (batch, rows, columns, channels), size (P, Q) -> (batch * windows, P * Q, channels).
    """
    _check(maps, size)
    cut = maps.unflatten(2, (-1, size[1])).unflatten(1, (-1, size[0]))
    return cut.transpose(2, 3).reshape(-1, size[0] * size[1], maps.shape[3])


def from_windows(tiles: Tensor, size: tuple[int, int], rows: int, columns: int) -> Tensor:
    """The inverse of `to_windows`: (batch * windows, P * Q, channels) -> (batch, rows, columns, channels)."""
    cut = tiles.reshape(-1, rows // size[0], columns // size[1], *size, tiles.shape[-1])
    return cut.transpose(2, 3).reshape(-1, rows, columns, tiles.shape[-1])


def to_grid(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut maps into groups of cells spread evenly: cell (y, x) goes to group (y % (rows / P), x % (columns / Q)).

    Shapes: (batch, rows, columns, channels), size (P, Q) -> (batch * groups, P * Q, channels).
    """
    _check(maps, size)
    cut = maps.unflatten(2, (size[1], -1)).unflatten(1, (size[0], -1))
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(-1, size[0] * size[1], maps.shape[3])


def from_grid(tiles: Tensor, size: tuple[int, int], rows: int, columns: int) -> Tensor:
    """The inverse of `to_grid`: (batch * groups, P * Q, channels) -> (batch, rows, columns, channels)."""
    cut = tiles.reshape(-1, rows // size[0], columns // size[1], *size, tiles.shape[-1])
    return cut.permute(0, 3, 1, 4, 2, 5).reshape(-1, rows, columns, tiles.shape[-1])
