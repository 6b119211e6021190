"""PatchifyCaps: the patches of a feature map become capsules.

Source: Hu, Han, Sun, Ren 2025, arXiv:2508.16922.
"""

import torch
from torch import Tensor, nn

from mereo.core import bounded


class PatchifyCapsules(nn.Module):
    """Average-pool patches, project them, add where they are, normalise.

        u = LayerNorm( conv1x1( avgpool_p(f) ) + position )

    Args:
        channels: of the feature map.
        dim: pose of a capsule.
        patch_size: kernel and stride of the pooling.
        grid: (rows, columns) of patches; what lies beyond the last whole patch is left out.

    Shapes: (batch, channels, height, width) -> (batch, rows * columns, dim), row by row.

    Deviates: the start of the positions is not stated; they start normal with standard deviation 0.02.
    """

    def __init__(self, channels: int, dim: int, patch_size: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(patch_size)
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
