"""Efficient channel gating: each channel is multiplied by a gate made of the means of its neighbouring channels.

Source: Wang, Wu, Zhu, Li, Zuo, Hu 2020, arXiv:1910.03151 (efficient channel attention), section 3.
Cost: one pass over the features, and `kernel` multiply-adds a channel.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from mereo.core import Signal, mechanism
from mereo.errors import UsageError, check_positive
from mereo.mechanisms.gate.published import Names


def kernel_for(channels: int) -> int:
    """The odd number of channels that a gate reads: floor((log2(channels) + 1) / 2), or one more, and at least 3."""
    size = int((math.log2(channels) + 1) / 2)
    return max(size if size % 2 else size + 1, 3)


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return EfficientChannelGate(8), (torch.randn(2, 8, 5, 5) + torch.randn(2, 8, 1, 1),)


@mechanism(
    "efficient_channel_gate",
    aliases=("eca", "efficient_channel_attention"),
    family="gate",
    source="arXiv:1910.03151",
    records="gates",
    promises=("any sender order", "any receiver order", "any length"),
    sender_axes={"0": 2},
    receiver_axes={"0": 2, "output": 2},
    interface="maps",
    example=_example,
)
class EfficientChannelGate(nn.Module):
    """Multiply each channel by a gate between 0 and 1 that depends on the means of the channels next to it.

    g_c = sigmoid(sum_i w_i m_{c + i - kernel // 2}),   m = mean_hw(x),   out = x * g

    Channels beyond the first and the last count as zero.

    Args:
        channels: of the features; `kernel` follows from them if it is not given.
        kernel: how many channels a gate reads, an odd number.

    Shapes: features (batch, channels, height, width) -> the same; gates (batch, channels, 1, 1).

    Reads as: gates[b, c] is the share of channel c that goes on.

    Reference: arXiv:1910.03151, eq. 9 (gates) and 12 (kernel, with gamma 2 and b 1).
    """

    published_names: ClassVar[Names] = ({"neighbours": "conv"},)

    def __init__(self, channels: int, kernel: int | None = None) -> None:
        super().__init__()
        check_positive(channels=channels)
        size = kernel_for(channels) if kernel is None else kernel
        most = max(3, 2 * channels - 1)  # reads all channels from any of them
        if not 1 <= size <= most or size % 2 == 0:
            raise UsageError(f"kernel is {kernel}; for {channels} channels it must be odd, from 1 to {most}.")
        self.neighbours = nn.Conv1d(1, 1, size, padding=size // 2, bias=False)
        self.gates = Signal("gates")

    def forward(self, features: Tensor) -> Tensor:
        scores = self.neighbours(features.mean((2, 3)).unsqueeze(1)).squeeze(1)
        gates: Tensor = self.gates(scores.sigmoid()[:, :, None, None])
        return features * gates
