"""Efficient local attention: the means of rows and of columns, filtered along their length, gate the map.

Source: Xu, Wan 2024, arXiv:2403.01123 (ELA), section 3.
Cost: C k C / g multiply-adds for each row and each column, and three passes over the features (k the kernel, g groups).
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from mereo.core import Signal, mechanism
from mereo.errors import UsageError, check_choice, check_positive
from mereo.mechanisms.gate.published import Names
from mereo.mechanisms.gate.strips import gated, strip_means

PRESETS = {"tiny": (5, 1, 32), "base": (7, 1, 16), "small": (5, 8, 16), "large": (7, 8, 16)}
"""Kernel, channels of a group of the convolution, and groups of the norm. By cost: tiny, base, small, large."""
ACTIVATIONS = {"identity": nn.Identity, "silu": nn.SiLU}


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return ELA(8, norm_groups=2, kernel=3), (torch.randn(2, 8, 6, 5) + torch.randn(2, 8, 6, 1),)


@mechanism(
    "ela",
    family="gate",
    source="arXiv:2403.01123",
    steps=2,
    records="gates",
    promises=("any length",),
    sender_axes={"0": 2},
    receiver_axes={"0": 2, "output": 2},
    largest_input=1e15,  # the group norm squares
    interface="maps",
    example=_example,
)
class ELA(nn.Module):
    """Multiply each channel of a map by a gate of its row and a gate of its column.

    r = mean over columns of x,   s = mean over rows of x

    out = x sigmoid(GN(filter(r))) sigmoid(GN(filter(s)))

    Args:
        channels: of the map.
        preset: "tiny", "base", "small" or "large" of the paper: `kernel` 5, 7, 5, 7, filters for each channel or (small
            and large) for groups of 8, and 32 groups of the norm (tiny) or 16.
        kernel: positions that a filter reads, odd; by default the preset's.
        conv_groups: groups of the convolution; by default the preset's.
        norm_groups: groups of the norm; by default the preset's. A slot of a network whose width 32 does not divide
            fills in the largest number up to 16 that does.
        separate: whether rows and columns have a filter and a norm each; they share one where False.
        activation: between norm and gate, "identity" or "silu". timm's `EfficientLocalAttn` has `separate`, "silu" and
            one group.

    Shapes: features (batch, channels, height, width) -> the same; gates (batch, channels, height, 1) and
        (batch, channels, 1, width).

    Reads as: gates of a row and of a column multiply to the share of a position that goes on; their product has rank
    one over the positions of a channel.

    Deviates: the equations name a filter for each axis, and public implementations share one, as the default here.

    Reference: arXiv:2403.01123, eq. 4 to 8.
    """

    published_names: ClassVar[Names] = (
        {"filters.0": "conv_h", "filters.1": "conv_w", "norms.0": "norm_h", "norms.1": "norm_w"},
    )

    def __init__(
        self,
        channels: int,
        preset: Literal["tiny", "base", "small", "large"] = "base",
        kernel: int | None = None,
        conv_groups: int | None = None,
        norm_groups: int | None = None,
        separate: bool = False,
        activation: Literal["identity", "silu"] = "identity",
    ) -> None:
        super().__init__()
        check_choice("preset", preset, PRESETS)
        check_choice("activation", activation, ACTIVATIONS)
        size, together, norms = PRESETS[preset]
        kernel = size if kernel is None else kernel
        norm_groups = norms if norm_groups is None else norm_groups
        check_positive(channels=channels, kernel=kernel, norm_groups=norm_groups)
        if kernel % 2 == 0:
            raise UsageError(f"kernel is {kernel}; it must be odd.")
        if channels % norm_groups:
            raise UsageError(f"norm_groups is {norm_groups}; it must divide channels, {channels}.")
        if conv_groups is None:
            if channels % together:
                raise UsageError(f"channels is {channels} with preset {preset!r}; it must be a multiple of {together}.")
            conv_groups = channels // together
        if conv_groups < 1 or channels % conv_groups:
            raise UsageError(f"conv_groups is {conv_groups}; it must divide channels, {channels}.")
        count = 2 if separate else 1
        self.filters = nn.ModuleList(
            nn.Conv1d(channels, channels, kernel, padding=kernel // 2, groups=conv_groups, bias=False)
            for _ in range(count)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(norm_groups, channels) for _ in range(count))
        self.activation = ACTIVATIONS[activation]()
        self.rows, self.columns = Signal("gates"), Signal("gates")

    def _gates(self, means: Tensor, which: int) -> Tensor:
        """(batch, channels, length) -> the same."""
        gates: Tensor = self.activation(self.norms[which](self.filters[which](means))).sigmoid()
        return gates

    def forward(self, features: Tensor) -> Tensor:
        rows, columns = strip_means(features)
        if len(self.filters) == 1 and rows.shape == columns.shape:
            rows, columns = self._gates(torch.cat((rows, columns)), 0).chunk(2)
        else:
            rows, columns = self._gates(rows, 0), self._gates(columns, -1)
        return gated(features, self.rows(rows.unsqueeze(3)), self.columns(columns.unsqueeze(2)))
