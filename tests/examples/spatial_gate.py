"""Spatial gate: a position is scaled by what it and its neighbours show, over all channels.

Source: Woo, Park, Lee, Kweon 2018, arXiv:1807.06521 (CBAM), section 3, eq. 3.
Cost: 2 kernel^2 multiply-adds a position and two passes over the features.
"""

import torch
from torch import Tensor, nn

from mereo.core import Signal, mechanism
from mereo.errors import UsageError


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return SpatialGate(3), (torch.randn(2, 4, 6, 5) + torch.randn(2, 1, 6, 5),)


@mechanism(
    "spatial_gate",
    family="gate",
    source="arXiv:1807.06521",
    records="gates",
    promises=("any length",),
    sender_axes={"0": 2},
    receiver_axes={"0": 2, "output": 2},
    interface="maps",
    example=_example,
)
class SpatialGate(nn.Module):
    """Multiply each position by a gate between 0 and 1 that depends on the features around it.

    out_chw = x_chw * sigmoid(conv([mean_c x; max_c x]) + bias)_hw

    Args:
        kernel: side of the square of positions that decide on one, odd.

    Shapes: features (batch, channels, height, width) -> the same; gates (batch, height, width).
    """

    def __init__(self, kernel: int = 7) -> None:
        super().__init__()
        if kernel < 1 or kernel % 2 == 0:
            raise UsageError(f"kernel is {kernel}; it must be odd and at least 1.")
        self.weights = nn.Conv2d(2, 1, kernel, padding=kernel // 2)
        self.gates = Signal("gates")

    def forward(self, features: Tensor) -> Tensor:
        pooled = torch.stack([features.mean(1), features.amax(1)], 1)
        return features * self.gates(self.weights(pooled).squeeze(1).sigmoid()).unsqueeze(1)
