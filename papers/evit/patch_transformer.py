"""A small vision transformer with a class token, in the form that reductions of tokens expect."""

import torch
from torch import Tensor, nn

from papers.common.deep_networks import PatchBlock


class PatchTransformer(nn.Module):
    """Classify small images by the class token of a transformer over patches.

    Args:
        image_shape: (channels, height, width).
        num_classes: how many.
        patch: side of a patch.
        dim, heads, depth: size of the tokens, heads of the attention, number of blocks.

    Shapes: images (batch, channels, height, width) -> (batch, num_classes).
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        patch: int = 4,
        dim: int = 64,
        heads: int = 4,
        depth: int = 8,
    ) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.grid, self.num_prefix_tokens = (height // patch, width // patch), 1
        self.patches = nn.Conv2d(channels, dim, patch, patch)
        self.positions = nn.Parameter(0.02 * torch.randn(1, self.grid[0] * self.grid[1], dim))
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        self.blocks = nn.ModuleList(PatchBlock(dim, heads, 4 * dim) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).mT + self.positions
        x = torch.cat((self.class_token.expand(len(tokens), -1, -1), tokens), 1)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(self.norm(x[:, 0]))
        return scores
