"""Primary capsules: a convolution whose channels are read as types of capsules and the atoms of their poses.

Source: Sabour, Frosst, Hinton 2017, arXiv:1710.09829, section 4; the depthwise form: arXiv:2101.12491
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Grid, squash, squash_exponential
from mereo.core.shapes import conv_out, same_padding
from mereo.errors import UsageError


class PaddedConv2d(nn.Conv2d):
    """A convolution with zeros written around the image as TensorFlow's SAME does, or none at all.

    Shapes: (batch, in_channels, height, width) -> (batch, out_channels, ceil(height / stride), ceil(width / stride))
    with `same`, else as nn.Conv2d without padding.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int, stride: int = 1, *, same: bool, bias: bool = True
    ) -> None:
        super().__init__(in_channels, out_channels, kernel, stride, bias=bias)
        self.same = same

    def forward(self, input: Tensor) -> Tensor:
        if self.same:
            top, bottom = same_padding(input.shape[-2], self.kernel_size[0], self.stride[0])
            left, right = same_padding(input.shape[-1], self.kernel_size[1], self.stride[1])
            input = F.pad(input, (left, right, top, bottom))
        return super().forward(input)


def _side(side: int, same: bool) -> int:
    if same:
        return -(-side // 2)
    first = conv_out(side, 9)
    if first < 9:
        raise UsageError(
            f"img_size has a side of {side}: the first 9x9 convolution leaves {max(first, 0)}, and the second needs at"
            " least 9; give a side of at least 17, or padding='same' if the network has it."
        )
    return conv_out(first, 9, 2)


def primary_grid(height: int, width: int, types: int, *, same: bool = False) -> Grid:
    """Positions of CapsNet's primary capsules on an image, after convolutions of 9x9 with strides 1 and 2.

    UsageError if the image is too small for them.
    """
    # Without padding the first capsule looks at pixels 0 to 16, whose centre is 8.5.
    return Grid(_side(height, same), _side(width, same), types, 1.0 if same else 8.5, 2.0)


def flat_capsules(maps: Tensor, dim: int) -> Tensor:
    """Capsules by type, row and column: (batch, types * dim, rows, columns) -> (batch, capsules, dim)."""
    return maps.unflatten(1, (-1, dim)).movedim(2, -1).flatten(1, 3)


class PrimaryCapsules(nn.Module):
    """Squashed capsules from a convolution.

    Channel type * dim + atom of the convolution is atom `atom` of the capsule of type `type` at that position.

    Shapes: (batch, channels, height, width) -> (batch, types * rows * columns, dim), ordered by type, row, column.

    Reference: arXiv:1710.09829, section 4.
    """

    def __init__(
        self, in_channels: int, types: int, dim: int, kernel: int = 9, stride: int = 2, *, same: bool = False
    ) -> None:
        super().__init__()
        self.types, self.dim = types, dim
        self.conv = PaddedConv2d(in_channels, types * dim, kernel, stride, same=same)

    def forward(self, features: Tensor) -> Tensor:
        return squash(flat_capsules(self.conv(features), self.dim))


class DepthwisePrimaryCapsules(nn.Module):
    """Squashed capsules from one filter a channel that covers the whole map.

        a_c = sum_{y,x} w_c(y, x) f_c(y, x) + bias_c,   capsule n = squash_exponential(a_{n d}, ..., a_{n d + d - 1})

    Where stride leaves a border, the filter covers the top left kernel of the map, as an unpadded convolution does.

    Shapes: (batch, channels, height, width) -> (batch, channels / dim, dim).

    Reference: arXiv:2101.12491.
    """

    def __init__(self, channels: int, dim: int, kernel: tuple[int, int]) -> None:
        super().__init__()
        self.dim = dim
        self.weight = nn.Parameter(torch.empty(channels, 1, *kernel))
        self.bias = nn.Parameter(torch.zeros(channels))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, features: Tensor) -> Tensor:
        # One number a channel: an inner product over the map, far faster on a CPU than a grouped convolution.
        rows, columns = self.weight.shape[-2:]
        atoms = torch.einsum("bchw,chw->bc", features[..., :rows, :columns], self.weight.squeeze(1)) + self.bias
        return squash_exponential(atoms.unflatten(1, (-1, self.dim)))
