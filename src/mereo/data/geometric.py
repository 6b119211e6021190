"""Windows and linear maps of images. Windows are exact gathers of whole pixels; linear maps interpolate."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.runtime.device import copied_to


def take_window(images: Tensor, corners: Tensor, size: tuple[int, int], *, fill: float = 0) -> Tensor:
    """Cut a window out of each image: out[n, c, y, x] = images[n, c, y + top_n, x + left_n], `fill` outside the image.

    Cropping, shifting and padding are this one gather.

    Shapes: images (n, c, h, w), corners int64 (n, 2) of (top, left), any sign -> (n, c, *size).
    """
    count, channels, height, width = images.shape
    corners = copied_to(corners, images.device)
    rows = corners[:, 0, None] + torch.arange(size[0], device=images.device)
    columns = corners[:, 1, None] + torch.arange(size[1], device=images.device)
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    places = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    flat = places.view(count, 1, size[0] * size[1]).expand(-1, channels, -1)
    window = images.reshape(count, channels, height * width).gather(2, flat).view(count, channels, *size)
    return window.masked_fill_(~inside.unsqueeze(1), fill)


def transform(
    images: Tensor,
    matrices: Tensor,
    offsets: Tensor | None = None,
    *,
    nearest: bool = False,
    outside: Literal["zeros", "border"] = "zeros",
) -> Tensor:
    """Affine map about the centre: out(p) = images(M p + o), p in pixels from the centre.

    Args:
        images: to be mapped.
        matrices: M, acting on (x, y).
        offsets: o; zero when None.
        nearest: take the nearest pixel rather than interpolate.
        outside: values beyond the border: zeros, or the pixels of the border.

    Shapes: images (n, c, h, w), matrices (n, 2, 2), offsets (n, 2) -> (n, c, h, w).
    """
    if not len(images):  # grid_sample refuses an empty batch
        return images
    height, width = images.shape[-2:]
    # grid_sample measures in half sides, so the off-diagonal entries include the proportions of the image.
    sides = torch.tensor([[1.0, height / width], [width / height, 1.0]], device=images.device)
    if offsets is None:
        column = torch.zeros_like(matrices[:, :, :1])
    else:
        column = (offsets * torch.tensor([2 / width, 2 / height], device=images.device)).unsqueeze(2)
    theta = torch.cat([matrices * sides, column], dim=2)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    mode = "nearest" if nearest else "bilinear"
    return F.grid_sample(images, grid, mode=mode, padding_mode=outside, align_corners=False)


def rotation(radians: Tensor) -> Tensor:
    """(n,) -> (n, 2, 2) matrices [[cos, -sin], [sin, cos]]."""
    cosine, sine = radians.cos(), radians.sin()
    return torch.stack([cosine, -sine, sine, cosine], dim=-1).view(-1, 2, 2)
