"""Topologies of a grid that are products of one topology along each axis, such as windows."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from mereo.core.topology.base import Tiles, Topology

PADDING = -1


def product(first: Tensor, second: Tensor, length: int) -> Tensor:
    """Numbers of the cells of a grid from numbers along two axes: every entry of one with every entry of the other.

    Shapes: first int64 (m, a), second (n, b), numbers along an axis of `length`; -1 is padding -> (m * n, a * b).
    """
    first, second = first[:, None, :, None], second[None, :, None, :]
    both = (first * length + second).masked_fill((first < 0) | (second < 0), PADDING)
    return both.flatten(2).flatten(0, 1)


class Line(ABC):
    """Which cells of one axis see which; receivers and senders may be cells of different maps."""

    @property
    @abstractmethod
    def sides(self) -> tuple[int, int]:
        """Number of receivers and of senders along the axis."""

    @abstractmethod
    def sees(self, receiver: Tensor, sender: Tensor) -> Tensor:
        """As `Topology.sees`, along this axis."""

    @abstractmethod
    def tiles(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Receivers and senders of each tile of the axis, -1 for padding: int64 (tiles, r), (tiles, s)."""


class Product(Topology):
    """A receiver sees a sender if it does so along every axis; cells are numbered row by row."""

    @property
    @abstractmethod
    def lines(self) -> tuple[Line, ...]:
        """The topology along each axis."""

    @property
    def counts(self) -> tuple[int, int]:
        receivers = senders = 1
        for line in self.lines:
            receivers, senders = receivers * line.sides[0], senders * line.sides[1]
        return receivers, senders

    def sees(self, receiver: Tensor, sender: Tensor, counts: tuple[int, int]) -> Tensor:
        everything = torch.ones((), dtype=torch.bool, device=receiver.device)
        receivers, senders = self.counts
        for line in self.lines:
            receivers, senders = receivers // line.sides[0], senders // line.sides[1]
            along = receiver // receivers % line.sides[0], sender // senders % line.sides[1]
            everything = everything & line.sees(*along)
        return everything

    def make_tiles(self, counts: tuple[int, int], device: torch.device) -> Tiles:
        receivers = senders = torch.zeros(1, 1, dtype=torch.int64, device=device)
        for line in self.lines:
            r, s = line.tiles(device)
            receivers, senders = product(receivers, r, line.sides[0]), product(senders, s, line.sides[1])
        return Tiles(receivers, senders, *counts)


@dataclass(frozen=True)
class BlockLine(Line):
    """Blocks of cells, each of which sees itself and the cells next to it.

    Args:
        length: number of senders; the last block may be shorter.
        block: senders of a block.
        before, behind: senders that a block sees before its first and behind its last one.
        step: distance of two receivers in cells; divides `block`.
        causal: whether a receiver sees no sender behind it.
        number: blocks of the axis, those beyond its end included; by default the least that covers the axis.
    """

    length: int
    block: int
    before: int = 0
    behind: int = 0
    step: int = 1
    causal: bool = False
    number: int | None = None

    @property
    def sides(self) -> tuple[int, int]:
        return -(-self.length // self.step), self.length

    def sees(self, receiver: Tensor, sender: Tensor) -> Tensor:
        first = receiver // (self.block // self.step) * self.block
        near = (sender >= first - self.before) & (sender < first + self.block + self.behind)
        return near & (sender <= receiver * self.step) if self.causal else near

    def tiles(self, device: torch.device) -> tuple[Tensor, Tensor]:
        number = -(-self.length // self.block) if self.number is None else self.number
        at = torch.arange(number, device=device).unsqueeze(1)
        side = self.block // self.step
        receivers = at * side + torch.arange(side, device=device)
        senders = at * self.block + torch.arange(-self.before, self.block + self.behind, device=device)
        return inside(receivers, self.sides[0]), inside(senders, self.length)


@dataclass(frozen=True)
class SpreadLine(Line):
    """Groups of `size` cells spread evenly: cell y is in group y modulo length / size, rounded up."""

    length: int
    size: int

    @property
    def sides(self) -> tuple[int, int]:
        return self.length, self.length

    @property
    def groups(self) -> int:
        """Number of groups, and the distance of the cells of a group."""
        return -(-self.length // self.size)

    def sees(self, receiver: Tensor, sender: Tensor) -> Tensor:
        return receiver % self.groups == sender % self.groups

    def tiles(self, device: torch.device) -> tuple[Tensor, Tensor]:
        cells = torch.arange(self.groups * self.size, device=device).view(self.size, self.groups).T
        return (inside(cells, self.length),) * 2


def inside(numbers: Tensor, length: int) -> Tensor:
    """Numbers of cells, -1 for those beyond an axis."""
    return torch.where((numbers >= 0) & (numbers < length), numbers, PADDING)
