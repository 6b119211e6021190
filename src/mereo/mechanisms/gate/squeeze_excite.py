"""Squeeze and excite: channels are scaled by a function of their means over the image.

Source: Hu, Shen, Albanie, Sun, Wu 2018, arXiv:1709.01507, eq. 2 to 4.
Cost: 2 C hidden multiply-adds an image and two passes over its features.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from mereo.core import Signal, mechanism
from mereo.errors import check_positive
from mereo.mechanisms.gate.published import Names


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return SqueezeExcite(8, 4), (torch.randn(2, 8, 5, 5) + torch.randn(2, 8, 1, 1),)


@mechanism(
    "squeeze_excite",
    aliases=("se", "squeeze_excitation"),
    family="gate",
    source="arXiv:1709.01507",
    records="gates",
    promises=("any sender order", "any receiver order", "any length"),
    sender_axes={"0": 2},
    receiver_axes={"0": 2, "output": 2},
    interface="maps",
    example=_example,
)
class SqueezeExcite(nn.Module):
    """Multiply each channel by a gate between 0 and 1 that depends on the means of all channels.

    out = x * sigmoid(B activation(A mean_hw(x) + a) + b)

    Args:
        channels: of the features.
        hidden: size between A and B; the paper has channels / 16.
        activation: makes the activation; ReLU by default.

    Shapes: features (batch, channels, height, width) -> the same; gates (batch, channels, 1, 1).

    Reads as: gates[b, c] is the share of channel c that goes on.

    Reference: arXiv:1709.01507, eq. 2 (squeeze), 3 (excitation) and 4 (scale).
    """

    published_names: ClassVar[Names] = ({"squeeze": "fc1", "excite": "fc2"},)

    def __init__(self, channels: int, hidden: int, activation: Callable[[], nn.Module] = nn.ReLU) -> None:
        super().__init__()
        check_positive(channels=channels, hidden=hidden)
        self.squeeze = nn.Conv2d(channels, hidden, 1)
        self.activation = activation()
        self.excite = nn.Conv2d(hidden, channels, 1)
        self.gates = Signal("gates")

    def forward(self, features: Tensor) -> Tensor:
        hidden = self.activation(self.squeeze(features.mean((2, 3), keepdim=True)))
        return features * self.gates(self.excite(hidden).sigmoid())
