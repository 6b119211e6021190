"""Sparse axial routing: capsules attend along rows, then along columns, and their numbers attend to each other.

Source: Geng, Wang, Xu 2024, arXiv:2411.01564, which has no equations for it, and whose published code does not run it;
the details are ours.
Cost: for H x W capsules of D numbers: projections 4 H W D^2, exchange 2 H W D (H + W + D) multiply-adds an image.
"""

import torch
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.core.kernels.attention import attend
from mereo.core.topology import Blocks
from mereo.core.votes import SameVotes
from mereo.errors import check_heads
from mereo.mechanisms.routing.depthwise_attention import check_capsule_map


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return SparseAxialRouting(6, 2), (torch.randn(2, 3, 4, 6),)


@mechanism(
    "sparse_axial",
    family="routing",
    over="senders",
    steps=3,
    values="shared",
    update="linear layer",
    source="arXiv:2411.01564",
    reconstruction="the paper has no equations for it, and its code does not run it",
    promises=("normalised",),
    largest_input=1e12,  # queries times keys, summed over the capsules, must fit float32
    interface="maps",
    channels_last=True,
    example=_example,
)
class SparseAxialRouting(nn.Module):
    """Let capsules attend along one axis of the map at a time, and their numbers to each other, sparsely.

    q, k, v = W x + b

    a = attention along the columns of (attention along the rows of v),   both entmax(q k^T / sqrt(D / heads))

    e = v entmax(q^T k / sqrt(N))^T,   over the N capsules of the map, in each head

    out = W_o (a + e) + b_o

    Args:
        dim: D, numbers in a capsule.
        num_heads: independent sets of couplings; divides `dim`.

    Shapes: capsules (batch, rows, columns, dim) -> the same; couplings of rows and columns (batch, heads, rows *
        columns, rows * columns), couplings of numbers (batch, heads, dim / heads, dim / heads).

    Reads as: couplings[b, h, r, s] is the share of capsule s in capsule r, where s is in the row, or in the column, of
        r; for numbers, the share of number s of the capsules of the head in its number r. Most are zero.

    Deviates: the paper names the two kinds of axes, capsules and numbers, and sparsity; the order of rows and columns,
        the sum and the 1.5-entmax are ours.

    Reference: arXiv:2411.01564.
    """

    def __init__(self, dim: int, num_heads: int = 1) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.along_rows, self.along_columns, self.of_numbers = (Coupling("senders", "entmax15") for _ in range(3))
        self.of_numbers.of_places = False
        self.proj = nn.Linear(dim, dim)

    def _along(self, coupling: Coupling, size: tuple[int, int], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention along the last axis of places. Shapes: (batch, lines, places, heads, dim / heads) -> the same."""
        sides = (q.shape[1], q.shape[2])
        tiles = Blocks(sides if size[0] == 1 else sides[::-1], size)
        q, k, v = (x.flatten(0, 1).transpose(1, 2) for x in (q, k, v))
        return attend(q, k, v, coupling, tiles=tiles).transpose(1, 2).unflatten(0, (-1, sides[0]))

    def rows(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention inside every row. Shapes: (batch, rows, columns, heads, dim / heads) -> the same."""
        return self._along(self.along_rows, (1, q.shape[2]), q, k, v)

    def columns(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention inside every column. Shapes: (batch, rows, columns, heads, dim / heads) -> the same."""
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return self._along(self.along_columns, (q.shape[2], 1), q, k, v).transpose(1, 2)

    def numbers(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention between the numbers of a head, compared over the map.

        Shapes: (batch, rows, columns, heads, dim / heads) -> the same.
        """
        sides = (q.shape[1], q.shape[2])
        q, k, v = (x.flatten(1, 2).permute(0, 2, 3, 1) for x in (q, k, v))  # (batch, heads, numbers, capsules)
        scores = SameVotes(k).agree(q * max(q.shape[-1], 1) ** -0.5)
        mixed = SameVotes(v).combine(self.of_numbers(scores))
        return mixed.permute(0, 3, 1, 2).unflatten(1, sides)

    def forward(self, capsules: Tensor) -> Tensor:
        check_capsule_map(capsules, self.proj.in_features)
        q, k, v = self.qkv(capsules).unflatten(3, (3, self.num_heads, -1)).unbind(3)
        summed = self.columns(q, k, self.rows(q, k, v)) + self.numbers(q, k, v)
        out: Tensor = self.proj(summed.flatten(3))
        return out

    def extra_repr(self) -> str:
        return f"{self.proj.in_features}, num_heads={self.num_heads}"
