"""Convolution gate: three small convolutions decide how much of each position goes on.

Source: Adiga, Dolz, Lombaert 2022, arXiv:2206.09068, the attention module of ADSL; layers as in the authors' code,
github.com/adigasu/Dynamic_subspace_learners.
Cost: 9 (C h_1 + h_1 h_2 + h_2) multiply-adds a position.
"""

import torch
from torch import Tensor, nn

from mereo.core import Signal, mechanism
from mereo.errors import check_positive


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return ConvolutionGate(6, (5, 4)), (torch.randn(2, 6, 6, 5),)


@mechanism(
    "convolution_gate",
    family="gate",
    source="arXiv:2206.09068",
    records="gates",
    promises=("any length",),
    sender_axes={"0": 2},
    receiver_axes={"0": 2, "output": 2},
    interface="maps",
    example=_example,
)
class ConvolutionGate(nn.Module):
    """Multiply each position of a map by a number between 0 and 1 that depends on its neighbourhood.

    A = sigmoid(conv3x3(relu(conv3x3(relu(conv3x3(f)))))),   out = f A

    Args:
        channels: of the map.
        hidden: channels h_1 and h_2 after the first and the second convolution.

    Shapes: features (batch, channels, height, width) -> the same; gates (batch, 1, height, width).

    Reads as: gates are a map of what the network looks at, and a first guess at a segmentation.

    Reference: arXiv:2206.09068, section III; 1,216,961 parameters with 1024 channels.
    """

    def __init__(self, channels: int, hidden: tuple[int, int] = (128, 32)) -> None:
        super().__init__()
        check_positive(channels=channels, hidden=min(hidden))
        first, second = hidden
        self.layers = nn.Sequential(
            nn.Conv2d(channels, first, 3, padding=1), nn.ReLU(),
            nn.Conv2d(first, second, 3, padding=1), nn.ReLU(),
            nn.Conv2d(second, 1, 3, padding=1),
        )  # fmt: skip
        self.gates = Signal("gates")

    def forward(self, features: Tensor) -> Tensor:
        gates = self.gates(self.layers(features).sigmoid())
        return features * gates
