"""Local channel gate: a channel is scaled by what its neighbours in the list of channels show.

Source: Wang, Wu, Zhu, Li, Zuo, Hu 2020, arXiv:1910.03151 (ECA-Net), eq. 9.
Cost: kernel C multiply-adds an image and two passes over its features.
"""

import torch
from torch import Tensor, nn

from mereo.core import Signal, mechanism
from mereo.errors import UsageError


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return LocalChannelGate(3), (torch.randn(2, 8, 5, 5) + torch.randn(2, 8, 1, 1),)


@mechanism(
    "local_channel_gate",
    family="gate",
    source="arXiv:1910.03151",
    records="gates",
    promises=("any sender order", "any receiver order", "any length"),
    sender_axes={"0": 2},
    receiver_axes={"0": 2, "output": 2},
    example=_example,
)
class LocalChannelGate(nn.Module):
    """Multiply each channel by a gate between 0 and 1 that depends on the means of the channels around it.

    out_c = x_c * sigmoid(sum_k w_k mean_hw(x_(c + k)))

    Args:
        kernel: how many channels decide on one, odd.

    Shapes: features (batch, channels, height, width) -> the same; gates (batch, channels).
    """

    def __init__(self, kernel: int = 3) -> None:
        super().__init__()
        if kernel < 1 or kernel % 2 == 0:
            raise UsageError(f"kernel is {kernel}; it must be odd and at least 1.")
        self.weights = nn.Conv1d(1, 1, kernel, padding=kernel // 2, bias=False)
        self.gates = Signal("gates")

    def forward(self, features: Tensor) -> Tensor:
        scores = self.weights(features.mean((2, 3)).unsqueeze(1)).squeeze(1)
        return features * self.gates(scores.sigmoid())[:, :, None, None]
