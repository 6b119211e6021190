"""Colour and size of uint8 image tensors, in the arithmetic of `decode`, so that arrays and files give equal pixels."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.errors import UsageError

_CHUNK = 2048


def check_channels(native: int, wanted: int) -> None:
    """Raise `UsageError` unless images of `native` channels can become images of `wanted` channels."""
    if native != wanted and not (native in {1, 3} and wanted in {1, 3}):
        choices = "1 or 3" if native in {1, 3} else str(native)
        raise UsageError(f"in_chans is {wanted}; images of this dataset have {native}, so it must be {choices}.")


def fit_box(height: int, width: int, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """The largest centred box with the proportions of `size`: (top, left, height, width).

    Images keep their proportions: whatever exceeds the target shape is cut off evenly on both sides, as is usual
    for photographs. An image that already has the target proportions is not cut.
    """
    box_height = min(height, max(round(width * size[0] / size[1]), 1))
    box_width = min(width, max(round(height * size[1] / size[0]), 1))
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


def change_channels(images: Tensor, wanted: int) -> Tensor:
    """Grey to colour by repetition, colour to grey by luma 0.299 R + 0.587 G + 0.114 B (ITU-R 601, in 16 bit).

    Shapes: uint8 (n, channels, h, w) -> uint8 (n, wanted, h, w).
    """
    native = images.shape[1]
    check_channels(native, wanted)
    if native == wanted:
        return images
    if native == 1:
        return images.expand(-1, wanted, -1, -1)
    red, green, blue = images.to(torch.int32).unbind(1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).to(torch.uint8).unsqueeze(1)


def change_size(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear resizing with antialiasing, after the cut of `fit_box`.

    Shapes: uint8 (n, c, h, w) -> uint8 (n, c, *size).
    """
    top, left, height, width = fit_box(images.shape[2], images.shape[3], size)
    images = images[:, :, top : top + height, left : left + width]
    if (height, width) == size:
        return images
    wide = F.interpolate(images.float(), size, mode="bilinear", antialias=True, align_corners=False)
    return wide.round().clamp(0, 255).to(torch.uint8)


def convert_into(target: Tensor, images: Tensor, indices: Tensor) -> None:
    """Write images[indices] into `target`, converted to its channels and size, a piece at a time.

    Shapes: target uint8 (n, channels, height, width), images uint8 (N, c, h, w), indices int64 (n,).
    """
    _, channels, height, width = target.shape
    for start in range(0, len(indices), _CHUNK):
        piece = images[indices[start : start + _CHUNK]]
        target[start : start + len(piece)] = change_size(change_channels(piece, channels), (height, width))
