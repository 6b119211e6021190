"""Neighbourhoods: each token of a grid of one to three axes and the tokens nearest to it.

Source: arXiv:2403.04690; the stride is that of arXiv:2504.16922.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TypeVar

import torch
from torch import Tensor

from mereo.core.topology.base import Topology
from mereo.errors import UsageError

MOST_AXES = 3


T = TypeVar("T")


def each_axis(argument: str, value: T | Sequence[T], axes: int) -> tuple[T, ...]:
    """One value for each axis: the same for all, or as many as there are axes."""
    if not isinstance(value, Sequence):
        return (value,) * axes
    if len(value) != axes:
        raise UsageError(
            f"{argument} is {tuple(value)} for a grid of {axes} axes; give one value, or as many as it has axes."
        )
    return tuple(value)


@dataclass(frozen=True)
class Line:
    """Neighbourhoods along one axis: the arguments of `Neighborhood` for it."""

    length: int
    window: int
    stride: int
    dilation: int
    causal: bool

    def group(self, offset: int) -> int:
        """Number of positions with remainder `offset` by the dilation."""
        return (self.length - offset + self.dilation - 1) // self.dilation

    def together(self, queries: int) -> int:
        """Most keys that so many queries in a row have together."""
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

    def keys(self, device: torch.device | None = None) -> Tensor:
        """Which positions each position attends to: int64 (length, window), -1 where a causal window is cut short."""
        at = torch.arange(self.length, device=device)
        offset, place = at % self.dilation, torch.div(at, self.dilation, rounding_mode="floor")
        count = torch.div(self.length - offset + self.dilation - 1, self.dilation, rounding_mode="floor")
        first, end = self.window_of(place, count)
        keys = first.unsqueeze(1) + torch.arange(self.window, device=device)
        return torch.where(keys < end.unsqueeze(1), offset.unsqueeze(1) + self.dilation * keys, -1)


@dataclass(frozen=True)
class Neighborhood(Topology):
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
        stride: so many positions of a group share one window; from 1 to the window.
        dilation: distance between the tokens of a window.
        causal: whether a token attends to none behind it, along each axis.

    Raises:
        UsageError: for a window, stride or dilation that the grid does not hold, with those that it does.

    Reference: arXiv:2403.04690; stride: arXiv:2504.16922.
    """

    grid: tuple[int, ...]
    window: int | tuple[int, ...]
    stride: int | tuple[int, ...] = 1
    dilation: int | tuple[int, ...] = 1
    causal: bool | tuple[bool, ...] = False

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
    def lines(self) -> tuple[Line, ...]:
        """The neighbourhoods along each axis."""
        return tuple(map(Line, self.grid, *map(tuple, (self.window, self.stride, self.dilation, self.causal))))  # type: ignore[arg-type]

    @property
    def tokens(self) -> int:
        """Number of tokens of the grid."""
        return prod(self.grid)

    @property
    def size(self) -> int:
        """Number of tokens in a whole neighbourhood."""
        return prod(line.window for line in self.lines)

    def groups(self) -> Iterator[tuple[int, ...]]:
        """The remainders by the dilation, axis by axis: tokens of different groups never meet."""
        return product(*(range(line.dilation) for line in self.lines))

    def keys(self, device: torch.device | None = None) -> Tensor:
        """Which tokens each token attends to: int64 (tokens, size), -1 where a causal window is cut short."""
        keys = torch.zeros(1, 1, dtype=torch.long, device=device)
        for line in self.lines:
            along = line.keys(device)
            both = keys[:, None, :, None] * line.length + along[None, :, None, :]
            missing = (keys < 0)[:, None, :, None] | (along < 0)[None, :, None, :]
            keys = both.masked_fill(missing, -1).flatten(2).flatten(0, 1)
        return keys

    def allowed(self, receivers: int, senders: int, device: torch.device | None = None) -> Tensor:
        if (receivers, senders) != (self.tokens, self.tokens):
            raise UsageError(
                f"there are {receivers} receivers and {senders} senders, and {self.tokens} tokens in the grid"
                f" {self.grid}; a neighbourhood needs the tokens of its grid on both sides."
            )
        allowed = torch.zeros(receivers, senders + 1, dtype=torch.bool, device=device)
        # Behind the last sender is where -1 points to.
        return allowed.scatter_(1, self.keys(device) % (senders + 1), True)[:, :-1]
