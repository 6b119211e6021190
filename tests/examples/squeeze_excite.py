"""Squeeze and excite: channels are scaled by what the whole image shows.

Source: arXiv:1709.01507, eq. 2 to 4.
Cost: 4 C^2 / reduction FLOPs an image and one pass over its features.
"""

import torch
from torch import Tensor, nn

from mereo.core import Signal, mechanism
from mereo.errors import check_positive


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return SqueezeExcite(8, reduction=2), (torch.randn(2, 8, 5, 5) + torch.randn(2, 8, 1, 1),)


@mechanism(
    "squeeze_excite",
    family="gate",
    source="arXiv:1709.01507",
    records="gates",
    promises=("any sender order", "any receiver order", "any length"),
    sender_axes={"0": 2},
    receiver_axes={"0": 2, "output": 2},
    example=_example,
)
class SqueezeExcite(nn.Module):
    """Multiply each channel by a gate between 0 and 1 that depends on the means of all channels.

    out = x * sigmoid(B relu(A mean_hw(x)))

    Args:
        channels: of the features.
        reduction: how many times narrower the hidden layer is.

    Shapes: features (batch, channels, height, width) -> the same; gates (batch, channels).
    """

    def __init__(self, channels: int, reduction: int = 4) -> None:
        super().__init__()
        check_positive(channels=channels, reduction=reduction)
        self.squeeze = nn.Linear(channels, max(channels // reduction, 1))
        self.excite = nn.Linear(max(channels // reduction, 1), channels)
        self.gates = Signal("gates")

    def forward(self, features: Tensor) -> Tensor:
        hidden = self.squeeze(features.mean((2, 3))).relu()
        return features * self.gates(self.excite(hidden).sigmoid())[:, :, None, None]
