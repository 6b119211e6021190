"""Neighbourhoods: each token of a grid of one to three axes and the tokens nearest to it.

Source: arXiv:2403.04690; the stride is from arXiv:2504.16922.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar

import torch
from torch import Tensor

from mereo.core.topology.base import Tiles
from mereo.core.topology.lines import PADDING, Line, Product, product
from mereo.errors import UsageError

MOST_AXES = 3
TILE = {1: 32, 2: 8, 3: 4}
"""Queries of a tile along each axis, by the number of axes."""

T = TypeVar("T")


def each_axis(argument: str, value: T | Sequence[T], axes: int) -> tuple[T, ...]:
    """One value for each axis, from one for all axes or one for each."""
    if not isinstance(value, Sequence):
        return (value,) * axes
    if len(value) != axes:
        raise UsageError(f"{argument} is {tuple(value)} for a grid of {axes} axes; give one value, or {axes}.")
    return tuple(value)


@dataclass(frozen=True)
class WindowLine(Line):
    """Neighbourhoods along one axis: the arguments of `Neighborhood` for it."""

    length: int
    window: int
    stride: int
    dilation: int
    causal: bool
    tile: int = TILE[1]

    @property
    def sides(self) -> tuple[int, int]:
        return self.length, self.length

    def group(self, offset: int) -> int:
        """Number of positions with remainder `offset` by the dilation."""
        return (self.length - offset + self.dilation - 1) // self.dilation

    def together(self, queries: int) -> int:
        """Largest number of keys that this number of neighbouring queries has together."""
        blocks = (queries - 1 + self.stride - 1) // self.stride
        return self.window + min(blocks * self.stride, queries - 1 + self.stride - 1)

    def window_of(self, place: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """First key and the one behind the last, as places within the group of `count` positions; neither ever falls.

        Shapes: place int64 (...), count broadcastable to it -> (...), (...).
        """
        block = torch.div(place, self.stride, rounding_mode="floor") * self.stride
        if self.causal:
            leader = torch.minimum(block + self.stride - 1, count - 1)
            return (leader - self.window + 1).clamp(min=0), place + 1
        leader = torch.minimum(block + self.stride // 2, count - 1)
        first = torch.minimum(leader - self.window // 2, count - self.window).clamp(min=0)
        return first, first + self.window

    def _window_at(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """As `window_of`, for positions of the axis."""
        place = torch.div(at, self.dilation, rounding_mode="floor")
        count = torch.div(self.length - at % self.dilation + self.dilation - 1, self.dilation, rounding_mode="floor")
        return self.window_of(place, count)

    def sees(self, receiver: Tensor, sender: Tensor) -> Tensor:
        first, end = self._window_at(receiver)
        place = torch.div(sender, self.dilation, rounding_mode="floor")
        same = receiver % self.dilation == sender % self.dilation
        return same & (place >= first) & (place < end)

    def keys(self, device: torch.device | None = None) -> Tensor:
        """Which positions each position attends to: int64 (length, window), -1 where a causal window is cut short."""
        at = torch.arange(self.length, device=device)
        first, end = self._window_at(at)
        keys = first.unsqueeze(1) + torch.arange(self.window, device=device)
        return torch.where(keys < end.unsqueeze(1), (at % self.dilation).unsqueeze(1) + self.dilation * keys, PADDING)

    def tiles(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Queries in a row, group by group of the dilation, and the keys that they have together."""
        counts = [self.group(g) for g in range(self.dilation)]
        tile = min(self.tile, counts[0])
        at = [(g, n, first) for g, n in enumerate(counts) for first in range(0, n, tile)]
        group, count, begin = (torch.tensor(x, device=device).unsqueeze(1) for x in zip(*at, strict=True))
        first = self.window_of(begin, count)[0]

        def positions(places: Tensor) -> Tensor:
            return torch.where(places < count, group + self.dilation * places, PADDING)

        keys = first + torch.arange(min(self.together(tile), counts[0]), device=device)
        return positions(begin + torch.arange(tile, device=device)), positions(keys)


@dataclass(frozen=True)
class Neighborhood(Product):
    """Each token attends to the window of tokens nearest to it along every axis of their grid.

    Positions i of an axis with the same remainder by the dilation d form a group of L_g positions, numbered p = i // d.
    With window w and stride s, position p attends to t of its own group with start <= t < end:

        leader = min(p // s * s + s // 2, L_g - 1),     start = clamp(leader - w // 2, 0, L_g - w),   end = start + w
        causal:  leader = min(p // s * s + s - 1, L_g - 1),  start = max(leader - w + 1, 0),           end = p + 1

    So a window is shifted inwards at borders, and always whole; a causal one is cut short. An even window has one more
    token before the leader than behind it. The neighbourhood of a token is the product over the axes.

    Args:
        grid: number of tokens along each of one to three axes; tokens are numbered row by row.
        window: tokens along each axis; at least 2, and at most length // dilation.
        stride: number of positions of a group that share one window; from 1 to the window.
        dilation: distance between the tokens of a window.
        causal: whether a token attends to none behind it, along each axis.
        extra: number of senders behind the grid, such as registers or text, which every token attends to.

    Raises:
        UsageError: for a window, stride or dilation that does not fit the grid, with the values that do.

    Reference: arXiv:2403.04690; stride: arXiv:2504.16922.
    """

    grid: tuple[int, ...]
    window: int | tuple[int, ...]
    stride: int | tuple[int, ...] = 1
    dilation: int | tuple[int, ...] = 1
    causal: bool | tuple[bool, ...] = False
    extra: int = 0

    def __post_init__(self) -> None:
        grid = tuple(self.grid)
        if not 1 <= len(grid) <= MOST_AXES:
            raise UsageError(f"grid is {grid}; it must have one to three axes.")
        for name in ("window", "stride", "dilation", "causal"):
            object.__setattr__(self, name, each_axis(name, getattr(self, name), len(grid)))
        object.__setattr__(self, "grid", grid)
        for axis, line in enumerate(self.lines):
            where = f"axis {axis} of the grid {grid}, which has {line.length} tokens"
            for name in ("window", "stride", "dilation"):
                value = getattr(line, name)
                if not isinstance(value, int | torch.SymInt):
                    raise UsageError(f"{name} is {value!r} along {where}; it must be a whole number.")
            if line.dilation < 1:
                raise UsageError(f"dilation is {line.dilation} along {where}; it must be at least 1.")
            if line.window < 2 or line.window * line.dilation > line.length:
                most = line.length // line.dilation
                possible = f"2 to {most}" if most >= 2 else "none at this dilation"
                remedy = f"; for this window a dilation up to {line.length // line.window}" if line.window > 1 else ""
                raise UsageError(
                    f"window is {line.window} with dilation {line.dilation} along {where}; possible windows: "
                    f"{possible}{remedy if line.window <= line.length else ''}."
                )
            if not 1 <= line.stride <= line.window:
                raise UsageError(
                    f"stride is {line.stride} along {where}; it must be from 1 to the window, {line.window}."
                )

    @property
    def lines(self) -> tuple[WindowLine, ...]:
        """The neighbourhoods along each axis."""
        tiles = (TILE[len(self.grid)],) * len(self.grid)
        return tuple(
            map(WindowLine, self.grid, *map(tuple, (self.window, self.stride, self.dilation, self.causal)), tiles)  # type: ignore[arg-type]
        )

    @property
    def tokens(self) -> int:
        """Number of tokens of the grid."""
        return prod(self.grid)

    @property
    def size(self) -> int:
        """Number of tokens in a whole neighbourhood."""
        return prod(line.window for line in self.lines)

    @property
    def counts(self) -> tuple[int, int]:
        return self.tokens, self.tokens + self.extra

    @property
    def offsets(self) -> int:
        """Number of relative positions: the product over the axes of 2 window - 1."""
        return prod(2 * line.window - 1 for line in self.lines)

    def keys(self, device: torch.device | None = None) -> Tensor:
        """Which tokens of the grid each token attends to: int64 (tokens, size), -1 where a causal window is cut."""
        keys = torch.zeros(1, 1, dtype=torch.long, device=device)
        for line in self.lines:
            keys = product(keys, line.keys(device), line.length)
        return keys

    def sees(self, receiver: Tensor, sender: Tensor, counts: tuple[int, int]) -> Tensor:
        near = super().sees(receiver, sender, counts)
        return near if not self.extra else torch.where(sender < self.tokens, near, True)

    def relative(self, receiver: Tensor, sender: Tensor) -> Tensor:
        """Entry of each pair in a flat table of relative positions; senders behind the grid have entry `offsets`."""
        entry, rest = torch.zeros_like(receiver + sender), self.tokens
        for line in self.lines:
            rest //= line.length
            apart = sender // rest % line.length - receiver // rest % line.length
            steps = torch.div(apart, line.dilation, rounding_mode="floor") + line.window - 1
            entry = entry * (2 * line.window - 1) + steps.clamp(0, 2 * line.window - 2)
        return torch.where(sender < self.tokens, entry, self.offsets)

    def table(
        self, receivers: int | None = None, senders: int | None = None, device: torch.device | None = None
    ) -> Tensor:
        self._sizes(receivers, senders)
        return self._with_extra(self.keys(device))

    def make_tiles(self, counts: tuple[int, int], device: torch.device) -> Tiles:
        tiles = super().make_tiles(counts, device)
        return Tiles(tiles.receivers, self._with_extra(tiles.senders), *counts)

    def _with_extra(self, senders: Tensor) -> Tensor:
        more = torch.arange(self.tokens, self.tokens + self.extra, device=senders.device)
        return torch.cat((senders, more.expand(len(senders), -1)), 1) if self.extra else senders
