"""Facts about one call that all processes share before any of them computes."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mereo.core.distributed.layout import Piece, pieces, shard_positions
from mereo.core.distributed.partial import Kernel, merge
from mereo.core.distributed.ranks import Ranks
from mereo.core.squash import accumulation_type


@dataclass(frozen=True)
class Plan:
    """One call: the processes, how many queries and keys each has, and which pairs take part."""

    ranks: Ranks
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    layout: str
    causal: bool
    kernel: Kernel

    def pieces(self, sender: int) -> list[Piece]:
        """The pairs of this process's queries and the keys of another."""
        return pieces(self.layout, self.causal, self.ranks.rank, sender, self.rows, self.columns)

    @cached_property
    def order(self) -> Tensor | None:
        """Place of each token of the whole sequence among those of process 0, process 1, ...; None where that is it."""
        if self.layout == "contiguous":
            return None
        total, size = sum(self.columns), self.ranks.size
        return torch.cat([shard_positions(total, size, rank, self.layout) for rank in range(size)]).argsort()

    def attend(self, sender: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> None:
        """Attend to the keys of one process, and merge that into `out` and `lse`."""
        for piece in self.pieces(sender):
            rows, columns = slice(*piece.rows), slice(*piece.columns)
            part, part_lse = self.kernel.forward(q[:, :, rows], k[:, :, columns], v[:, :, columns], piece.causal)
            merge(out[:, :, rows], lse[:, :, rows], part, part_lse)

    def gradients(
        self,
        sender: int,
        given: tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor],
        k: Tensor,
        v: Tensor,
        into: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        """Add the gradients through the keys of one process.

        Args:
            given: gradient of the output, gradient of lse or None, queries, output, lse.
            into: the sums of dq, dk, dv.
        """
        grad, grad_lse, q, out, lse = given
        for piece in self.pieces(sender):
            rows, columns = slice(*piece.rows), slice(*piece.columns)
            found = self.kernel.backward(
                grad[:, :, rows],
                None if grad_lse is None else grad_lse[:, :, rows],
                q[:, :, rows],
                k[:, :, columns],
                v[:, :, columns],
                out[:, :, rows],
                lse[:, :, rows],
                piece.causal,
            )
            for total, part, where in zip(into, found, (rows, columns, columns), strict=True):
                total[:, :, where] += part


def empty_sums(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """An output of zeros and a normaliser of no senders, in the type in which parts are added."""
    wide = accumulation_type(q)
    return q.new_zeros(*q.shape[:3], v.shape[3], dtype=wide), q.new_full(q.shape[:3], float("-inf"), dtype=wide)


def head_groups(heads: int, bytes_per_head: int, least: int = 2**20, parts: int = 8) -> Iterator[slice]:
    """Groups of heads that travel together: an eighth of them, but more where that is less than a MiB.

    What travels is held several times. In small groups this adds little to what a process holds anyway.
    """
    together = max(1, heads // parts, -(-least // max(bytes_per_head, 1)))
    for first in range(0, heads, together):
        yield slice(first, min(first + together, heads))
