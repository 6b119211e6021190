"""Combiner over an image whose rows are read one after the other: rows and columns directly, the rest as regions.

Source: arXiv:2107.05768, section 4.3, and the released code for the keys of rows.
Cost: N (n + 2 m) scores a head for N = n m tokens in rows of m, for vertical regions; N (3 n + m) for horizontal ones;
    N (n + m) for whole rows.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mereo.errors import check_positive
from mereo.mechanisms.attention.sparse.plans.base import Joint, Plan, cut, real, side


class _Image(NamedTuple):
    """Queries, keys and values (batch, heads, rows, columns, dim), and the pairs of rows and of columns that exist.

    Attributes:
        there: which entries are tokens, bool (rows, columns).
        above: other rows that a row sees, bool (rows, rows).
        left: columns of its own row that a column sees, itself included, bool (columns, columns).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    there: Tensor
    above: Tensor
    left: Tensor


@dataclass(frozen=True)
class _Axial(Plan):
    """Args:
    columns: tokens of a row; None for the square root of the number of tokens.
    """

    columns: int | None = None

    def __post_init__(self) -> None:
        if self.columns is not None:
            check_positive(columns=self.columns)

    def mix(self, given: Joint) -> Tensor:
        tokens, device = given.q.shape[2], given.q.device
        columns = side(self.columns, tokens)
        rows = -(-tokens // columns)
        q, k, v = (cut(x, rows, columns) for x in (given.q, given.k, given.values))
        row, column = torch.arange(rows, device=device), torch.arange(columns, device=device)
        above = row < row.unsqueeze(1) if given.causal else row != row.unsqueeze(1)
        left = column <= column.unsqueeze(1) if given.causal else above.new_ones(columns, columns)
        out = self.over(given, _Image(q, k, v, real(tokens, rows, columns, device), above, left))
        return out.flatten(2, 3)[:, :, :tokens]

    @abstractmethod
    def over(self, given: Joint, image: _Image) -> Tensor:
        """The same of an image: (batch, heads, rows, columns, any)."""


def _along_row(given: Joint, image: _Image) -> tuple[Tensor, Tensor]:
    """Scores of the tokens of the own row: (batch, heads, rows, columns, columns), and which exist."""
    return given.scale * image.q @ image.k.mT, image.left & image.there.unsqueeze(1)


def _along_column(given: Joint, q: Tensor, k: Tensor) -> Tensor:
    """Scores of entries of the own column: (batch, heads, rows, columns, rows)."""
    return given.scale * (q.transpose(2, 3) @ k.transpose(2, 3).mT).transpose(2, 3)


def _from_column(weights: Tensor, v: Tensor) -> Tensor:
    """Sum of entries of the own column: weights (batch, heads, rows, columns, rows) -> (..., rows, columns, any)."""
    return (weights.transpose(2, 3) @ v.transpose(2, 3)).transpose(2, 3)


def _direct(given: Joint, image: _Image) -> list[tuple[Tensor, Tensor]]:
    """Own column without the token itself, and own row."""
    exists = image.above.unsqueeze(1) & image.there.T.unsqueeze(0)
    return [(_along_column(given, image.q, image.k), exists), _along_row(given, image)]


@dataclass(frozen=True)
class AxialVertical(_Axial):
    """A token attends to its row and its column, and to every other column as one region, without the own row.

    If causal: to its row up to itself, its column above, and the part of every other column above its row.
    """

    def over(self, given: Joint, image: _Image) -> Tensor:
        q, k, v = (x.transpose(2, 3) for x in image[:3])
        there = image.there.T
        of_q, of_k = given.others(q, there), given.others(k, there)
        of_v = given.within(of_q, k, v, image.above & there.unsqueeze(1)).transpose(2, 3)
        of_k = of_k.transpose(2, 3)
        full = (image.above.unsqueeze(-1) & image.there).any(1)  # (rows, columns): whether the region has a member
        columns = image.there.shape[1]
        other = ~torch.eye(columns, dtype=torch.bool, device=q.device)
        regions = given.scale * image.q @ of_k.mT, other & full.unsqueeze(1)
        column, row, region = given.weigh([*_direct(given, image), regions])
        return _from_column(column, image.v) + row @ image.v + region @ of_v


@dataclass(frozen=True)
class AxialHorizontal(_Axial):
    """A token attends to its row and its column, and to the left and right part of every other row as two regions.

    If causal: to its row up to itself, its column above, and the two parts of every row above.
    """

    def over(self, given: Joint, image: _Image) -> Tensor:
        there, columns = image.there, torch.arange(image.there.shape[1], device=image.q.device)
        parts, values = _direct(given, image), []
        for pool, inside in (
            (given.before, columns < columns.unsqueeze(1)),
            (given.after, columns > columns.unsqueeze(1)),
        ):
            members = inside & there.unsqueeze(1)  # (rows, columns, columns)
            of_q, of_k = pool(image.q, there), pool(image.k, there)
            values.append(given.within(of_q, image.k, image.v, members))
            exists = image.above.unsqueeze(1) & members.any(-1).T.unsqueeze(0)
            parts.append((_along_column(given, image.q, of_k), exists))
        column, row, left, right = given.weigh(parts)
        out = _from_column(column, image.v) + row @ image.v
        return out + _from_column(left, values[0]) + _from_column(right, values[1])


@dataclass(frozen=True)
class AxialRowMajor(_Axial):
    """A token attends to its row, up to itself if it is causal, and to every other row, or every earlier one.

    Of each row it takes the token of its own column, which has attended to the whole row before. The key of that region
    is learned from it (`project`); without that, it is the pooled key of the row.
    """

    def over(self, given: Joint, image: _Image) -> Tensor:
        there = image.there
        summed = given.within(image.q, image.k, image.v, there.unsqueeze(1))
        if given.project is None:
            keys = given.pooled(image.k, there).unsqueeze(3).expand_as(image.k)
        else:
            tokens = given.q.shape[2]
            seen = summed
            if given.carried is not None:
                seen = given.within(image.q, image.k, cut(given.v, *there.shape), there.unsqueeze(1))
            keys = cut(given.project(seen.flatten(2, 3)[:, :, :tokens]), *there.shape)
        # The last row may be shorter: a token beyond its end has attended to it as well, with a query of zero.
        exists = image.above.unsqueeze(1).expand(-1, there.shape[1], -1)
        rows = _along_column(given, image.q, keys), exists
        row, region = given.weigh([_along_row(given, image), rows])
        return row @ image.v + _from_column(region, summed)


@dataclass(frozen=True)
class AxialMixture(_Axial):
    """The mean of the attention over vertical and over horizontal regions."""

    def over(self, given: Joint, image: _Image) -> Tensor:
        plans = (AxialVertical(self.columns), AxialHorizontal(self.columns))
        return torch.stack([plan.over(given, image) for plan in plans]).mean(0)
