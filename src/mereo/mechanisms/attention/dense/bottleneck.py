"""Bottleneck attention: every cell of a map attends to all cells, with learned scores for relative positions.

Source: Srinivas, Lin, Parmar, Shlens, Abbeel, Vaswani 2021, arXiv:2101.11605, figure 4.
Cost: N^2 heads (2 d_k + d_v) multiply-adds for N cells, and the projections.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.core.kernels.attention import attend
from mereo.errors import UsageError, check_positive


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return BottleneckAttention(6, 2, size=(3, 4)), (torch.randn(2, 6, 3, 4),)


def _offsets(table: Tensor, length: int) -> Tensor:
    """Rows of a table by offset, for every pair of a query and a key along an axis of `length` cells.

    Shapes: (2 size - 1, dim) -> (length, length, dim). For another length than `size`, the table is interpolated.
    """
    if len(table) != 2 * length - 1:
        table = F.interpolate(table.mT.unsqueeze(0), 2 * length - 1, mode="linear", align_corners=True)[0].mT
    places = torch.arange(length, device=table.device)
    return table[places - places.unsqueeze(1) + length - 1]


@mechanism(
    "bottleneck",
    family="dense attention",
    over="senders",
    values="shared",
    update="identity",
    source="arXiv:2101.11605",
    promises=("normalised",),
    largest_input=1e15,  # queries times keys must fit float32
    interface="maps",
    example=_example,
)
class BottleneckAttention(nn.Module):
    """Let each cell of a map attend to all cells, by content and by relative position along rows and columns.

    logits[q, k] = d^-1/2 q . k + q . E_rows[i - a + rows - 1] + q . E_columns[j - e + columns - 1]

    for the query at (a, e) and the key at (i, j);  out[q] = sum_k softmax_k(logits[q, k]) v_k   for each head

    Args:
        channels: of the maps, C.
        num_heads: independent sets of couplings; divides `channels`. All share the tables E.
        size: (rows, columns) of the maps that the tables are for. For maps of another size they are interpolated.
        stride: 1; or 2, which averages the outputs of 2 x 2 cells.

    Shapes: maps (batch, channels, rows, columns) -> (batch, channels, rows / stride, columns / stride),
        rounded up.

    Reads as: couplings[b, h, r, s] is the share of cell s in the output of head h at cell r, row by row.

    Deviates: the scores of positions are not scaled by d^-1/2, as in timm, whose trained weights need that.

    Reference: arXiv:2101.11605, figure 4 and appendix A.
    """

    def __init__(self, channels: int, num_heads: int = 4, *, size: tuple[int, int], stride: int = 1) -> None:
        super().__init__()
        check_positive(channels=channels, num_heads=num_heads, rows=size[0], columns=size[1])
        if channels % num_heads:
            raise UsageError(f"channels is {channels} and num_heads {num_heads}; give a divisor.")
        if stride not in (1, 2):
            raise UsageError(f"stride is {stride}; it must be 1 or 2.")
        self.num_heads, self.stride = num_heads, stride
        dim = channels // num_heads
        self.qkv = nn.Conv2d(channels, 3 * channels, 1, bias=False)
        self.rows = nn.Parameter(torch.empty(2 * size[0] - 1, dim))
        self.columns = nn.Parameter(torch.empty(2 * size[1] - 1, dim))
        self.coupling = Coupling("senders")
        nn.init.trunc_normal_(self.qkv.weight, std=channels**-0.5)
        for table in (self.rows, self.columns):
            nn.init.trunc_normal_(table, std=dim**-0.5)

    def forward(self, maps: Tensor) -> Tensor:
        rows, columns = maps.shape[2:]
        cells = self.qkv(maps).permute(0, 2, 3, 1).flatten(1, 2)
        q, k, v = cells.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).contiguous()
        places = q.unflatten(2, (rows, columns))
        by_row = torch.einsum("nhaed,aid->nhaei", places, _offsets(self.rows, rows))
        by_column = torch.einsum("nhaed,ejd->nhaej", places, _offsets(self.columns, columns))
        bias = (by_row.unsqueeze(-1) + by_column.unsqueeze(-2)).flatten(4).flatten(2, 3)
        out = attend(q, k, v, self.coupling, bias=bias)
        out = out.transpose(1, 2).flatten(2).unflatten(1, (rows, columns)).permute(0, 3, 1, 2)
        return F.avg_pool2d(out, 2, ceil_mode=True) if self.stride == 2 else out

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, stride={self.stride}"
