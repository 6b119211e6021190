"""The legend of axes, and the shapes used throughout the library.

Letter  axis        meaning
B       batch       images of one step
C       channels    colour or feature channels
H, W    height, width
N, D    tokens, dim or pose
P       heads       independent sets of couplings ("parallel")
R       receivers   parents, queries, wholes
S       senders     children, keys, parts

Images are (B, C, H, W); tokens (B, N, D); capsules (B, N, D); couplings and scores (B, heads, R, S).
Masks are bool and True means "takes part".
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mereo.errors import UsageError


class Capsules(NamedTuple):
    """Poses (batch, capsules, pose) and how present each capsule is (batch, capsules)."""

    pose: Tensor
    activation: Tensor


def image_size(img_size: int | tuple[int, int] | list[int]) -> tuple[int, int]:
    """Height and width from one number or a pair; UsageError unless both are whole numbers above 0."""
    sides = tuple(img_size) if isinstance(img_size, tuple | list) else (img_size, img_size)
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise UsageError(f"img_size is {img_size!r}; it must be a whole number above 0, or a pair (height, width).")
    return sides


def conv_out(size: int, kernel: int, stride: int = 1, padding: int = 0) -> int:
    """Side of a convolution's output: floor((size + 2 padding - kernel) / stride) + 1."""
    return (size + 2 * padding - kernel) // stride + 1


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and after a side so that a convolution gives ceil(size / stride): the odd one goes after."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def flat_cells(maps: Tensor) -> Tensor:
    """The cells of maps in a row: (batch, channels, rows, columns) -> (batch, channels, rows * columns).

    The gradient comes back in the memory layout of the maps. After `flatten(2).mT` this is the layout of channels-last
    maps, for which PyTorch's batch normalisation returns wrong gradients on a CPU for a batch of one image.
    """
    # Compilers may take channels-last maps for contiguous ones; the second form is a view of both.
    if maps.is_contiguous() and not torch.compiler.is_compiling():
        return maps.flatten(1).unflatten(1, (maps.shape[1], -1))
    return maps.flatten(2)
