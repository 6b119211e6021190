"""Halo attention: the cells of a block attend to the block and a halo of cells around it.

Source: Vaswani, Ramachandran, Srinivas, Parmar, Hechtman, Shlens 2021, arXiv:2103.12731, section 2.
Cost: win^2 heads (d_k + d_v) multiply-adds a cell, win = block + 2 halo; keys and values are copied (win / block)^2
    times.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.core.kernels.attention import attend
from mereo.core.topology import Halo
from mereo.errors import UsageError, check_not_negative, check_positive


def _overlapping(cells: Tensor, axis: int, block: int, win: int) -> Tensor:
    """Windows of `win` cells at every `block`-th cell: (..., length, ...) -> (..., windows, win, ...).

    The length is a whole number of blocks, and the last window ends in the last of them. Blocks are joined rather than
    read by `Tensor.unfold`, whose backward pass is slow.
    """
    blocks = cells.unflatten(axis, (-1, block))
    reach = -(-win // block)
    count = blocks.shape[axis] - reach + 1
    parts = [blocks.narrow(axis, i, count).narrow(axis + 1, 0, min(block, win - i * block)) for i in range(reach)]
    return parts[0] if reach == 1 else torch.cat(parts, axis + 1)


def _windows(cells: Tensor, block: int, halo: int, heads: int = 1) -> Tensor:
    """Every block with its halo; cells beyond the image are zeros.

    Shapes: (batch, rows, columns, heads * dim) -> (batch * blocks, heads, win * win, dim).
    """
    after = -(-2 * halo // block) * block - halo
    below, right = (after + -side % block for side in cells.shape[1:3])
    win = block + 2 * halo
    padded = F.pad(cells, (0, 0, halo, right, halo, below)).unflatten(3, (heads, -1))
    bands = _overlapping(padded, 1, block, win).permute(0, 1, 4, 2, 3, 5)
    # (batch, down, heads, win, columns, dim) -> (batch, down, heads, win, across, win, dim)
    return _overlapping(bands, 4, block, win).permute(0, 1, 4, 2, 3, 5, 6).flatten(4, 5).flatten(0, 2)


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return HaloAttention(6, 2, key_dim=3, value_dim=4, block=2, halo=1, stride=2), (torch.randn(2, 6, 6, 4),)


@mechanism(
    "halo",
    family="local attention",
    over="senders",
    values="shared",
    update="identity",
    source="arXiv:2103.12731",
    promises=("normalised",),
    largest_input=1e15,  # queries times keys must fit float32
    interface="maps",
    example=_example,
)
class HaloAttention(nn.Module):
    """Let each cell attend to its block and the cells around the block, with learned scores for relative positions.

    logits[q, k] = d_k^-1/2 q . k + q . E_rows[i - a + win - 1] + q . E_columns[j - e + win - 1]

    Cell (a, e) of a block sees cell (i, j) of its window, win = block + 2 halo:

    out[q] = sum_k softmax_k(logits[q, k]) v_k   for each head

    A map that blocks do not divide is padded below and right, as its borders are by the halo. Padded keys and values
    are zero; by default they take part, with logits of their position only, as in the public ports.

    Args:
        channels: of the maps.
        num_heads: independent sets of couplings.
        key_dim, value_dim: size of queries and keys, and of values, of each head; channels / num_heads by default.
        block: side of a block.
        halo: cells that a window has on each side of its block.
        stride: 1; or 2, which keeps the queries of every other row and column. Where 2 does not divide `block`, all
            queries are kept and the outputs of 2 x 2 cells averaged.
        mask_padding: leave cells beyond the image out.
        true_offsets: with stride 2, count the offset of a query in cells of the keys (i - 2 a), not of the queries
            (i - a).
        scale_positions: multiply the scores of positions by d_k^-1/2 too.

    Shapes: maps (batch, channels, rows, columns) -> (batch, num_heads * value_dim, rows / stride, columns / stride),
        rounded up.

    Reads as: couplings[b, h, r, s] is the share of cell s in the output of head h at cell r. With padding that takes
    part, couplings of cells close to a border do not sum to one over the image.

    Deviates: the paper does not state whether padding is masked, how offsets are counted under a stride, and how
    weights start; the defaults follow the public port that has trained weights (timm).

    Reference: arXiv:2103.12731, section 2.2 and figure 1 (blocks and halos), 2.3 (attention downsampling).
    """

    def __init__(
        self,
        channels: int,
        num_heads: int = 8,
        *,
        key_dim: int | None = None,
        value_dim: int | None = None,
        block: int = 8,
        halo: int = 3,
        stride: int = 1,
        mask_padding: bool = False,
        true_offsets: bool = False,
        scale_positions: bool = False,
    ) -> None:
        super().__init__()
        check_positive(channels=channels, num_heads=num_heads, block=block)
        check_not_negative(halo=halo)
        if stride not in (1, 2):
            raise UsageError(f"stride is {stride}; it must be 1 or 2.")
        if (key_dim is None or value_dim is None) and channels % num_heads:
            raise UsageError(
                f"channels is {channels} and num_heads {num_heads}; give key_dim and value_dim, or a divisor."
            )
        self.key_dim = channels // num_heads if key_dim is None else key_dim
        self.value_dim = channels // num_heads if value_dim is None else value_dim
        check_positive(key_dim=self.key_dim, value_dim=self.value_dim)
        self.num_heads, self.block, self.halo, self.stride = num_heads, block, halo, stride
        self.win = block + 2 * halo
        self.step = stride if block % stride == 0 else 1
        self.mask_padding, self.true_offsets, self.scale_positions = mask_padding, true_offsets, scale_positions
        self.query = nn.Conv2d(channels, num_heads * self.key_dim, 1, stride=self.step, bias=False)
        self.key_value = nn.Conv2d(channels, num_heads * (self.key_dim + self.value_dim), 1, bias=False)
        self.rows = nn.Parameter(torch.empty(2 * self.win - 1, self.key_dim))
        self.columns = nn.Parameter(torch.empty(2 * self.win - 1, self.key_dim))
        self.coupling = Coupling("senders")
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: truncated normal, with deviations channels^-1/2 (projections) and key_dim^-1/2 (positions)."""
        for projection in (self.query, self.key_value):
            nn.init.trunc_normal_(projection.weight, std=projection.in_channels**-0.5)
        for table in (self.rows, self.columns):
            nn.init.trunc_normal_(table, std=self.key_dim**-0.5)

    def _relative(self, q: Tensor) -> Tensor:
        """Scores of relative positions: q (batch, heads, cells of a block, key_dim) -> (..., win * win)."""
        side = self.block // self.step
        apart = self.step if self.true_offsets else 1
        key = torch.arange(self.win, device=q.device)
        offsets = key - apart * torch.arange(side, device=q.device).unsqueeze(1) + self.win - 1
        cells = q.unflatten(2, (side, side))
        by_row = torch.einsum("nhaed,aid->nhaei", cells, self.rows[offsets])
        by_column = torch.einsum("nhaed,ejd->nhaej", cells, self.columns[offsets])
        return (by_row.unsqueeze(-1) + by_column.unsqueeze(-2)).flatten(4).flatten(2, 3)

    def forward(self, maps: Tensor) -> Tensor:
        rows, columns = maps.shape[2:]
        side = self.block // self.step
        queries = self.query(maps).permute(0, 2, 3, 1)
        down, across = queries.shape[1:3]
        q = _windows(queries, side, 0, self.num_heads)
        kv = _windows(self.key_value(maps).permute(0, 2, 3, 1), self.block, self.halo, self.num_heads)
        k, v = kv.split((self.key_dim, self.value_dim), -1)
        scale, mask = self.key_dim**-0.5, None
        bias = self._relative(q * scale if self.scale_positions else q)
        if self.mask_padding:
            inside = torch.ones(maps.shape[0], rows, columns, 1, dtype=torch.bool, device=maps.device)
            mask = _windows(inside, self.block, self.halo).mT
        topology = Halo((rows, columns), self.block, self.halo, self.step)
        out = attend(q, k, v, self.coupling, mask=mask, bias=bias, scale=scale, tiles=topology)
        # (batch * blocks, heads, cells of a block, value_dim) -> (batch, channels, rows, columns)
        blocks = (-(-down // side), -(-across // side))
        out = out.transpose(1, 2).flatten(2).unflatten(0, (-1, *blocks)).unflatten(3, (side, side))
        out = out.transpose(2, 3).flatten(3, 4).flatten(1, 2)[:, :down, :across].permute(0, 3, 1, 2)
        return F.avg_pool2d(out, 2, ceil_mode=True) if self.step < self.stride else out

    def extra_repr(self) -> str:
        return (
            f"num_heads={self.num_heads}, key_dim={self.key_dim}, value_dim={self.value_dim}, block={self.block},"
            f" halo={self.halo}, stride={self.stride}"
        )
