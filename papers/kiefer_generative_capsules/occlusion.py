"""Images with a grey square in them."""

import torch
from torch import Tensor


def random_square(images: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """The pixels that a square at a random place hides: bool (batch, height, width)."""
    batch, _, height, width = images.shape
    corner = torch.rand(batch, 2, generator=generator)
    top = (corner[:, 0] * (height - side + 1)).long()[:, None, None]
    left = (corner[:, 1] * (width - side + 1)).long()[:, None, None]
    y, x = torch.arange(height)[None, :, None], torch.arange(width)[None, None, :]
    return ((y >= top) & (y < top + side) & (x >= left) & (x < left + side)).to(images.device)


def hide(images: Tensor, hidden: Tensor) -> Tensor:
    """The images with hidden pixels in grey: (batch, channels, height, width), bool (batch, height, width)."""
    return torch.where(hidden.unsqueeze(1), torch.full_like(images, 0.5), images)
