"""Which tokens of a sequence each process holds, and which pairs of two processes' tokens attend to each other.

Source: ring attention arXiv:2310.01889; the striped order arXiv:2311.09431.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mereo.errors import UsageError, check_choice, check_positive

LAYOUTS = ("contiguous", "zigzag", "striped")


def _chunk_sizes(length: int, chunks: int) -> list[int]:
    """Sizes of consecutive chunks that differ by at most one, the longer ones first."""
    return [length // chunks + (i < length % chunks) for i in range(chunks)]


def shard_positions(length: int, ranks: int, rank: int, layout: str = "contiguous") -> Tensor:
    """Positions in the whole sequence of the tokens that a process holds, ascending: int64 (tokens of the process,).

    contiguous: block r of P.   zigzag: blocks r and 2 P - 1 - r of 2 P.   striped: r, r + P, r + 2 P, ...

    With causal attention a contiguous layout leaves the first processes idle; in the other two all have equal work.
    Where the number of blocks does not divide the length, the first ones have one token more.
    """
    check_choice("layout", layout, LAYOUTS)
    check_positive(ranks=ranks)
    if not 0 <= rank < ranks:
        raise UsageError(f"rank is {rank} of {ranks}; it must be from 0 to {ranks - 1}.")
    if layout == "striped":
        return torch.arange(rank, length, ranks)
    everything = torch.arange(length)
    if layout == "contiguous":
        return everything.split(_chunk_sizes(length, ranks))[rank]
    chunks = everything.split(_chunk_sizes(length, 2 * ranks))
    return torch.cat((chunks[rank], chunks[2 * ranks - 1 - rank]))


def shard_lengths(length: int, ranks: int, layout: str = "contiguous") -> list[int]:
    """How many tokens each process holds."""
    return [len(shard_positions(length, ranks, rank, layout)) for rank in range(ranks)]


@dataclass(frozen=True)
class Piece:
    """Some queries and keys of two processes; all their pairs take part, or only the causal ones.

    Attributes:
        rows, columns: (first, one behind the last) query, and the same for keys.
        causal: whether query i attends to keys 0 to i only; then their numbers are equal.
    """

    rows: tuple[int, int]
    columns: tuple[int, int]
    causal: bool = False

    @property
    def empty(self) -> bool:
        return self.rows[0] >= self.rows[1] or self.columns[0] >= self.columns[1]

    @property
    def pairs(self) -> int:
        """How many pairs take part."""
        rows, columns = self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]
        return rows * (rows + 1) // 2 if self.causal else rows * columns


def pieces(
    layout: str, causal: bool, receiver: int, sender: int, rows: Sequence[int], columns: Sequence[int]
) -> list[Piece]:
    """The pairs of the queries of one process and the keys of another that take part, as rectangles and triangles.

    Args:
        receiver, sender: the process with the queries, and that with the keys.
        rows, columns: how many queries and how many keys each process has; the same if causal.
    """
    n, m, ranks = rows[receiver], columns[sender], len(rows)
    if not causal:
        piece = Piece((0, n), (0, m))
    elif receiver == sender:
        piece = Piece((0, n), (0, n), causal=True)  # positions rise within a process in every layout
    elif layout == "striped":
        # Key s + j P is not behind query r + i P where j <= i, or j < i if s > r.
        piece = Piece((0, n), (0, n), True) if sender < receiver else Piece((1, n), (0, n - 1), True)
    elif layout == "zigzag":
        sizes = _chunk_sizes(sum(rows), 2 * ranks)
        piece = Piece((0, n), (0, sizes[sender])) if sender < receiver else Piece((sizes[receiver], n), (0, m))
    else:
        piece = Piece((0, n), (0, m if sender < receiver else 0))
    return [] if piece.empty else [piece]
