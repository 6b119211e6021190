"""PatchifyCaps: the patches of a feature map become capsules.

Source: Hu, Han, Sun, Ren 2025, arXiv:2508.16922.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mereo.core import bounded
from mereo.errors import UsageError


def patch_grids(
    sides: tuple[int, int], patch_size: int, used: Sequence[int], reduction: int = 1
) -> list[tuple[int, int]]:
    """Rows and columns of whole patches on three maps, each of half the sides of the one before, rounded up.

    Args:
        sides: height and width of the image.
        patch_size: side of a patch on every map.
        used: numbers of the maps that must hold a patch; UsageError if one does not.
        reduction: ratio of the image's sides to the sides of the first map.
    """
    maps = [tuple(-(-side // (reduction * 2**i)) for side in sides) for i in range(3)]
    grids = [(height // patch_size, width // patch_size) for height, width in maps]
    for i in reversed(used):
        if min(grids[i]) < 1:
            raise UsageError(
                f"img_size is {sides[0]} x {sides[1]}, so map {i} is {maps[i][0]} x {maps[i][1]} (each next map halves"
                f" the side), which holds no patch of patch_size {patch_size}; take an image of at least"
                f" {((patch_size - 1) * 2**i * reduction) + 1} or a smaller patch_size."
            )
    return grids


class PatchifyCapsules(nn.Module):
    """Average-pool patches, project them, add their positions, normalise.

        u = LayerNorm( conv1x1( avgpool_p(f) ) + position )

    Args:
        channels: of the feature map.
        dim: pose of a capsule.
        patch_size: kernel and stride of the pooling; None divides a map of any size into the patches of the grid, which
            then overlap by a cell if they do not divide it.
        grid: (rows, columns) of patches; pixels beyond the last whole patch of `patch_size` are ignored.

    Shapes: (batch, channels, height, width) -> (batch, rows * columns, dim), row by row.

    Deviates: the start of the positions is not stated; they start normal with standard deviation 0.02. A patch_size of
        None is not in the paper.
    """

    def __init__(self, channels: int, dim: int, patch_size: int | None, grid: tuple[int, int]) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(grid) if patch_size is None else nn.AvgPool2d(patch_size)
        self.proj = nn.Conv2d(channels, dim, 1)
        self.position = nn.Parameter(torch.empty(grid[0] * grid[1], dim))
        self.norm = nn.LayerNorm(dim)
        nn.init.xavier_normal_(self.proj.weight)
        if self.proj.bias is not None:
            nn.init.zeros_(self.proj.bias)
        nn.init.normal_(self.position, std=0.02)

    def forward(self, features: Tensor) -> Tensor:
        tokens = self.proj(self.pool(features)).flatten(2).transpose(1, 2)
        return self.norm(bounded(tokens + self.position))
