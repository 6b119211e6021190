"""Coordinate attention: the means of rows and of columns, mixed over the channels, gate the map.

Source: Hou, Zhou, Feng 2021, arXiv:2103.02907, section 3.
Cost: 2 C hidden multiply-adds for each row and each column, and three passes over the features.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from mereo.core import Signal, mechanism
from mereo.errors import check_positive
from mereo.mechanisms.gate.published import Names
from mereo.mechanisms.gate.strips import gated, strip_means


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return CoordinateAttention(8, hidden=4), (torch.randn(2, 8, 6, 5) + torch.randn(2, 8, 6, 1),)


@mechanism(
    "coordinate_attention",
    family="gate",
    source="arXiv:2103.02907",
    steps=2,
    records="gates",
    promises=("any sender order", "any receiver order", "any length"),
    sender_axes={"0": 2},
    receiver_axes={"0": 2, "output": 2},
    interface="maps",
    example=_example,
)
class CoordinateAttention(nn.Module):
    """Multiply each channel of a map by a gate of its row and a gate of its column.

    f = hardswish(BN(W [mean over columns of x; mean over rows of x])),   out = x sigmoid(W_h f_h) sigmoid(W_w f_w)

    Args:
        channels: of the map.
        hidden: width of f; by default channels / 32 and at least 8, as in the authors' code.
        bias: of all three linear steps; the authors' code has them, timm has not.

    Shapes: features (batch, channels, height, width) -> the same; gates (batch, channels, height, 1) and
        (batch, channels, 1, width).

    Reads as: gates of a row and of a column multiply to the share of a position that goes on.

    Reference: arXiv:2103.02907, eq. 4 to 9.
    """

    published_names: ClassVar[Names] = (
        {"squeeze": "conv1", "norm": "bn1", "of_rows": "conv_h", "of_columns": "conv_w"},
    )

    def __init__(self, channels: int, hidden: int | None = None, bias: bool = False) -> None:
        super().__init__()
        hidden = max(8, channels // 32) if hidden is None else hidden
        check_positive(channels=channels, hidden=hidden)
        self.squeeze, self.norm = nn.Conv1d(channels, hidden, 1, bias=bias), nn.BatchNorm1d(hidden)
        self.activation = nn.Hardswish()
        self.of_rows, self.of_columns = (nn.Conv1d(hidden, channels, 1, bias=bias) for _ in range(2))
        self.rows, self.columns = Signal("gates"), Signal("gates")

    def forward(self, features: Tensor) -> Tensor:
        means = torch.cat(strip_means(features), 2)
        rows, columns = self.activation(self.norm(self.squeeze(means))).split(features.shape[2:], 2)
        rows, columns = self.of_rows(rows).sigmoid(), self.of_columns(columns).sigmoid()
        return gated(features, self.rows(rows.unsqueeze(3)), self.columns(columns.unsqueeze(2)))
