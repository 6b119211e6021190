"""The basic block of residual networks, with either of its shortcuts.

Source: He, Zhang, Ren, Sun 2016, arXiv:1512.03385, section 3.3.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.errors import check_choice
from mereo.layers.conv_norm import ConvNorm
from mereo.mechanisms.slots import Place, fill_slot

SHORTCUTS = ("padding", "projection")


class BasicBlock(nn.Module):
    """relu(shortcut(x) + mechanism(norm(conv(relu(norm(conv(x)))))))

    Args:
        inputs, outputs: channels.
        stride: of the first convolution.
        shortcut: the path around the block if the shape changes: "padding" takes every stride-th cell and adds channels
            of zeros on both sides, "projection" is a convolution of size one with a norm.
        mechanism: name of a mechanism at the end of the residual branch, such as "squeeze_excite"; None for none.
        mechanism_args: arguments of its constructor that the block does not fill in.
        size: rows and columns of the output, for mechanisms that need them.

    Shapes: (batch, inputs, height, width) -> (batch, outputs, ceil(height / stride), ceil(width / stride)).

    Reference: arXiv:1512.03385, section 3.3, options A and B.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        shortcut: str = "padding",
        *,
        mechanism: str | None = None,
        mechanism_args: Mapping[str, Any] | None = None,
        size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        check_choice("shortcut", shortcut, SHORTCUTS)
        self.first = ConvNorm(inputs, outputs, 3, stride, activation=nn.ReLU)
        self.second = ConvNorm(outputs, outputs, 3)
        self.stride, self.added = stride, outputs - inputs
        projects = shortcut == "projection" and (stride > 1 or self.added != 0)
        self.projection = ConvNorm(inputs, outputs, 1, stride) if projects else None
        place = Place(outputs, size=size)
        self.mechanism = None if mechanism is None else fill_slot(mechanism, "maps", place, mechanism_args)

    def _shortcut(self, x: Tensor) -> Tensor:
        if self.projection is not None:
            return self.projection(x)
        shortcut = x if self.stride == 1 else x[:, :, :: self.stride, :: self.stride]
        if self.added:
            shortcut = F.pad(shortcut, (0, 0, 0, 0, self.added // 2, self.added - self.added // 2))
        return shortcut

    def forward(self, x: Tensor) -> Tensor:
        branch = self.second(self.first(x))
        if self.mechanism is not None:
            branch = self.mechanism(branch)
        return torch.relu(self._shortcut(x) + branch)
