"""A small diffusion transformer over one sequence of text and image tokens, trained by flow matching."""

import math

import torch
from torch import Tensor, nn

from mereo.layers import FeedForward
from mereo.mechanisms.attention import MultiHeadAttention


class FlowBlock(nn.Module):
    """Attention and feed-forward, each shifted, scaled and gated by the time and the class."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(dim, elementwise_affine=False) for _ in range(2))
        self.attn, self.mlp = MultiHeadAttention(dim, heads), FeedForward(dim, 4 * dim)
        self.modulation = nn.Linear(dim, 6 * dim)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale, gate, shift2, scale2, gate2 = self.modulation(condition).unsqueeze(1).chunk(6, -1)
        x = x + gate * self.attn(self.norm1(x) * (1 + scale) + shift)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class FlowTransformer(nn.Module):
    """Predict the velocity from an image to noise, for each pixel a token, with text tokens for the class.

    Args:
        image_shape: (channels, height, width).
        num_classes: how many.
        text_tokens: learned tokens of each class, before the tokens of the image.
        dim, heads, depth: size of the tokens, heads of the attention, number of blocks.

    Shapes: images (batch, channels, height, width), time (batch,) in [0, 1], labels int64 (batch,) -> as images.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        text_tokens: int = 8,
        dim: int = 64,
        heads: int = 4,
        depth: int = 4,
    ) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.grid, self.num_prefix_tokens = (height, width), text_tokens
        self.text = nn.Parameter(0.02 * torch.randn(num_classes, text_tokens, dim))
        self.pixels, self.positions = nn.Linear(channels, dim), nn.Parameter(0.02 * torch.randn(height * width, dim))
        self.time = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim), nn.SiLU())
        self.blocks = nn.ModuleList(FlowBlock(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, channels)
        self.frequencies: Tensor
        self.register_buffer("frequencies", 1000 ** -torch.linspace(0, 1, dim // 2), persistent=False)

    def forward(self, images: Tensor, time: Tensor, labels: Tensor) -> Tensor:
        angles = 2 * math.pi * 4 * time.unsqueeze(1) * self.frequencies
        text = self.text[labels]
        condition = self.time(torch.cat((angles.cos(), angles.sin()), 1)) + text.mean(1)
        x = torch.cat((text, self.pixels(images.flatten(2).mT) + self.positions), 1)
        for block in self.blocks:
            x = block(x, condition)
        return self.head(self.norm(x[:, self.num_prefix_tokens :])).mT.reshape(images.shape)


def noised(images: Tensor, noise: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Images on the way to noise, and the velocity there: x_t = (1 - t) x_0 + t e, target e - x_0.

    Shapes: images, noise (batch, channels, height, width), time (batch,) -> both as images.
    """
    t = time.view(-1, 1, 1, 1)
    return (1 - t) * images + t * noise, noise - images


@torch.no_grad()
def sampled(model: nn.Module, noise: Tensor, labels: Tensor, steps: int = 24) -> Tensor:
    """Images from noise: Euler steps against the velocity, from time 1 to 0."""
    model.eval()
    images = noise
    for step in range(steps, 0, -1):
        images = images - model(images, torch.full((len(noise),), step / steps, device=noise.device), labels) / steps
    return images
