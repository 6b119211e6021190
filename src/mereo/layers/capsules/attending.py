"""Stages of capsules on a map: a convolution to fewer, wider capsules, then cells of attention between them.

Source: Geng, Wang, Xu 2024, arXiv:2411.01564.
"""

import math

from torch import Tensor, nn

from mereo.core import Coupling, Grid
from mereo.core.initialise import start_linears
from mereo.errors import check_choice, check_heads, check_positive
from mereo.layers import ChannelNorm, FeedForward, StochasticDepth, linear_rates
from mereo.mechanisms.routing import DepthwiseAttention, SparseAxialRouting

ROUTINGS = ("conv", "axial")
MIX = 4
"""Ratio of the hidden to the outer width of the two layers that follow the attention."""


class CapsuleCell(nn.Module):
    """x <- x + drop(route(norm(x))),   x <- x + drop(layers(norm(x)))

    Args:
        dim: numbers in a capsule.
        num_heads: of the attention.
        routing: "conv", see `DepthwiseAttention`, or "axial", see `SparseAxialRouting`.
        drop_path: probability with which a branch is left out for an image, in training.
        stride: of keys and values, of "conv".

    Shapes: capsules (batch, rows, columns, dim) -> the same.
    """

    def __init__(
        self, dim: int, num_heads: int = 1, *, routing: str = "conv", drop_path: float = 0.0, stride: int = 2
    ) -> None:
        super().__init__()
        check_choice("routing", routing, ROUTINGS)
        self.norm = nn.LayerNorm(dim)
        axial = routing == "axial"
        self.route: DepthwiseAttention | SparseAxialRouting = (
            SparseAxialRouting(dim, num_heads) if axial else DepthwiseAttention(dim, num_heads, stride=stride)
        )
        self.mix_norm = nn.LayerNorm(dim)
        self.mix = FeedForward(dim, MIX * dim)
        self.drop = StochasticDepth(drop_path)

    def forward(self, capsules: Tensor) -> Tensor:
        capsules = capsules + self.drop(self.route(self.norm(capsules)))
        return capsules + self.drop(self.mix(self.mix_norm(capsules)))

    def place(self, grid: Grid) -> None:
        """Store in the couplings the positions of the capsules on the image."""
        for module in self.modules():
            if isinstance(module, Coupling) and module.of_places:
                module.senders = module.receivers = grid
        if isinstance(self.route, DepthwiseAttention):
            stride = self.route.stride
            rows, columns = (math.ceil(side / stride) for side in (grid.rows, grid.columns))
            self.route.coupling.senders = grid._replace(rows=rows, columns=columns, step=grid.step * stride)


class CapsuleStage(nn.Module):
    """A convolution that halves the capsules along each side and widens them, then cells.

    conv 3x3 with stride 2, BN, ReLU -> conv 3x3, BN, ReLU -> norm of each capsule -> cells

    Args:
        in_dim, out_dim: numbers in a capsule of the map below and of this one; between the convolutions there are
            (in_dim + out_dim) // 2.
        depth: number of cells.
        num_heads, routing, stride: of the cells.
        drop_path: of the last cell; it rises linearly from 0 in the first.

    Shapes: maps (batch, in_dim, rows, columns) -> (batch, out_dim, ceil(rows / 2), ceil(columns / 2)).
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        depth: int,
        num_heads: int = 1,
        *,
        routing: str = "conv",
        drop_path: float = 0.0,
        stride: int = 2,
    ) -> None:
        super().__init__()
        check_positive(in_dim=in_dim, out_dim=out_dim)
        check_heads(out_dim, num_heads)
        middle = max((in_dim + out_dim) // 2, 1)
        self.parse = nn.Sequential(
            nn.Conv2d(in_dim, middle, 3, 2, 1),
            nn.BatchNorm2d(middle),
            nn.ReLU(),
            nn.Conv2d(middle, out_dim, 3, 1, 1),
            nn.BatchNorm2d(out_dim),
            nn.ReLU(),
            ChannelNorm(out_dim),
        )
        self.cells = nn.Sequential(
            *(
                CapsuleCell(out_dim, num_heads, routing=routing, drop_path=rate, stride=stride)
                for rate in linear_rates(drop_path, depth)
            )
        )
        start_linears(self)

    def forward(self, maps: Tensor) -> Tensor:
        capsules: Tensor = self.cells(self.parse(maps).permute(0, 2, 3, 1))
        return capsules.permute(0, 3, 1, 2)
