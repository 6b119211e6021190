"""CBAM: channels are gated by statistics of the whole map, then positions by a window around them.

Source: Woo, Park, Lee, Kweon 2018, arXiv:1807.06521, section 3.
Cost: 4 C hidden multiply-adds an image, 2 kernel^2 a position, and six passes over the features.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from mereo.core import Signal, mechanism
from mereo.errors import UsageError, check_positive
from mereo.mechanisms.gate.published import Names


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return CBAM(8, 4, kernel=3), (torch.randn(2, 8, 6, 5) + torch.randn(2, 8, 1, 1) + torch.randn(2, 1, 6, 5),)


@mechanism(
    "cbam",
    family="gate",
    source="arXiv:1807.06521",
    steps=2,
    records="gates",
    promises=("any length",),
    sender_axes={"0": 2},
    receiver_axes={"0": 2, "output": 2},
    interface="maps",
    example=_example,
)
class CBAM(nn.Module):
    """Multiply a map by a gate for each channel, and the result by a gate for each position.

    u = x sigmoid(mlp(mean_hw x) + mlp(max_hw x)),   out = u sigmoid(BN(conv([mean_c u; max_c u])))

    Args:
        channels: of the map.
        hidden: width of the network that makes the gates of channels; the paper has channels / 16.
        kernel: side of the square of positions that decide on one, odd.

    Shapes: features (batch, channels, height, width) -> the same; gates (batch, channels, 1, 1) and
        (batch, 1, height, width).

    Reads as: gates of channels and of positions multiply to the share that goes on.

    Reference: arXiv:1807.06521, eq. 2 and 3; the batch norm is from the authors' code.
    """

    published_names: ClassVar[Names] = (
        {"squeeze": "channel.fc1", "excite": "channel.fc2", "mix": "spatial.conv.conv", "norm": "spatial.conv.bn"},
    )

    def __init__(self, channels: int, hidden: int, kernel: int = 7) -> None:
        super().__init__()
        check_positive(channels=channels, hidden=hidden)
        if kernel < 1 or kernel % 2 == 0:
            raise UsageError(f"kernel is {kernel}; it must be odd and at least 1.")
        self.squeeze = nn.Linear(channels, hidden, bias=False)
        self.excite = nn.Linear(hidden, channels, bias=False)
        self.mix, self.norm = nn.Conv2d(2, 1, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(1)
        self.channels, self.positions = Signal("gates"), Signal("gates")

    def forward(self, features: Tensor) -> Tensor:
        pooled = torch.stack((features.mean((2, 3)), features.amax((2, 3))), 1)
        scores = self.excite(self.squeeze(pooled).relu()).sum(1)
        gated = features * self.channels(scores.sigmoid()[:, :, None, None])
        pooled = torch.cat((gated.mean(1, keepdim=True), gated.amax(1, keepdim=True)), 1)
        gates = self.positions(self.norm(self.mix(pooled)).sigmoid())
        return gated * gates if gated.requires_grad else gated.mul_(gates)
