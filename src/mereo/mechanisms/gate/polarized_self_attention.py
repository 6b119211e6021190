"""Polarized self-attention: a gate of the channels and a gate of the positions, each of full size.

Source: Liu, Liu, Fan, Huang 2021, arXiv:2107.00782, section 3; the other two softmaxes and channel gates follow
the authors' code, github.com/DeLightCMU/PSA.
Cost: 3 C multiply-adds a position, 2 C^2 an image and four passes over the features. No map of C / 2 channels is made,
except for the softmax over the values.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from mereo.core import Coupling, Signal, mechanism
from mereo.core.modes import must_be_called
from mereo.errors import UsageError, check_choice
from mereo.mechanisms.gate.published import Names
from mereo.mechanisms.gate.strips import gated

LAYOUTS = ("parallel", "sequential")
CHANNEL_GATES = ("ln", "plain", "bottleneck")
SPATIAL_SOFTMAXES = ("channels", "scores", "values")
RATIO = 4
"""Ratio of C / 2 to the width of the bottleneck."""
_OFFICIAL = {
    "channel_query": "conv_q_right",
    "channel_value": "conv_v_right",
    "spatial_query": "conv_q_left",
    "spatial_value": "conv_v_left",
}
_IN_PAPERS_FORM = {
    "channel_query": "ch_wq",
    "channel_value": "ch_wv",
    "channel_up.0": "ch_wz",
    "channel_up.1": "ln",
    "spatial_query": "sp_wq",
    "spatial_value": "sp_wv",
}


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return PolarizedSelfAttention(8), (torch.randn(2, 8, 6, 5) + torch.randn(2, 8, 1, 1),)


@mechanism(
    "polarized_self_attention",
    family="gate",
    source="arXiv:2107.00782",
    over="senders",
    values="shared",
    update="gate",
    steps=2,
    records="gates",
    also_records=("couplings",),
    promises=("normalised", "any sender order", "any receiver order", "any length"),
    zero_gradients={"channel_query.bias": "a softmax does not change where all scores grow alike"},
    sender_axes={"0": 2},
    receiver_axes={"0": 2, "output": 2},
    largest_input=1e15,  # the layer norm squares
    interface="maps",
    example=_example,
)
class PolarizedSelfAttention(nn.Module):
    """Multiply a map by a gate for each channel and by a gate for each position.

    a = softmax over positions of w_q x,   channel gate = sigmoid(LN(W_z W_v sum_p a_p x_p))

    q = softmax over channels of V_q mean_p x_p,   position gate = sigmoid(q . V_v x_p)

    parallel: (channel gate + position gate) x;   sequential: u = channel gate x,   position gate(u) u

    Args:
        channels: C of the map, even.
        layout: "parallel" or "sequential".
        channel_gate: "ln" (paper); "plain", without the layer norm, and "bottleneck", C / 2 -> C / 8 -> C with a layer
            norm and a ReLU between, as in the authors' parallel and sequential code.
        spatial_softmax: over "channels" of the pooled query (paper); "scores", the finished map, and "values", each
            channel of V_v x, both over positions, as in the authors' parallel and sequential code.
        bias: of w_q, W_v, W_z, V_q and V_v; by default with "ln" only.

    Shapes: features (batch, C, height, width) -> the same; couplings (batch, 1, 1, height * width), gates
        (batch, C, 1, 1) and (batch, 1, height, width).

    Reads as: couplings[b, 0, 0, s] is the share of position s in what the channel gates read.

    Deviates: W_v, V_q and V_v act on pooled features or are folded into one vector, which is equal. Parallel has a gain
    of about 1 at the start, sequential one of about 0.25. With "scores" all gates of positions are between 0.5 and
    0.732, so that none can be suppressed.

    Reference: arXiv:2107.00782, eq. 3 to 7.
    """

    def __init__(
        self,
        channels: int,
        layout: Literal["parallel", "sequential"] = "parallel",
        channel_gate: Literal["ln", "plain", "bottleneck"] = "ln",
        spatial_softmax: Literal["channels", "scores", "values"] = "channels",
        bias: bool | None = None,
    ) -> None:
        super().__init__()
        check_choice("layout", layout, LAYOUTS)
        check_choice("channel_gate", channel_gate, CHANNEL_GATES)
        check_choice("spatial_softmax", spatial_softmax, SPATIAL_SOFTMAXES)
        if channels < 2 or channels % 2:
            raise UsageError(f"channels is {channels}; it must be even and at least 2.")
        if channel_gate == "bottleneck" and (channels < 16 or channels % 8):
            # A layer norm of one value would erase it.
            raise UsageError(f"channels is {channels} with channel_gate 'bottleneck'; it must be 16, 24, 32 or so on.")
        bias, half = channel_gate == "ln" if bias is None else bias, channels // 2
        self.layout, self.spatial_softmax = layout, spatial_softmax
        self.channel_query = nn.Linear(channels, 1, bias=bias)
        self.channel_value = nn.Linear(channels, half, bias=bias)
        if channel_gate == "bottleneck":
            width = half // RATIO
            layers = nn.Linear(half, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, channels)
            self.channel_up = nn.Sequential(*layers)
        else:
            norm = (nn.LayerNorm(channels),) if channel_gate == "ln" else ()
            self.channel_up = nn.Sequential(nn.Linear(half, channels, bias=bias), *norm)
        self.spatial_query, self.spatial_value = (nn.Linear(channels, half, bias=bias) for _ in range(2))
        for layer in (self.channel_query, self.channel_value, self.spatial_query, self.spatial_value):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        self.coupling = Coupling("senders")
        self.channel_gates, self.spatial_gates = Signal("gates"), Signal("gates")

    published_names: ClassVar[Names] = (
        {**_OFFICIAL, "channel_up.0": "conv_up.0", "channel_up.1": "conv_up.1", "channel_up.3": "conv_up.3"},
        {**_OFFICIAL, "channel_up.0": "conv_up"},
        _IN_PAPERS_FORM,
    )

    def _of_channels(self, cells: Tensor) -> Tensor:
        """Gates of the channels: features (batch, C, P) -> (batch, C)."""
        if must_be_called(self.channel_query):
            scores = self.channel_query(cells.mT).mT
        else:
            # For a matrix that is not expanded, PyTorch copies the cells in another order.
            scores = torch.bmm(self.channel_query.weight.expand(cells.shape[0], -1, -1), cells)
            if self.channel_query.bias is not None:
                scores = scores + self.channel_query.bias
        shares = self.coupling(scores.unsqueeze(1)).squeeze(1)
        # Shares sum to one, so that the values of the mean are the mean of the values.
        pooled = (cells @ shares.mT).squeeze(2)
        gates: Tensor = self.channel_up(self.channel_value(pooled)).sigmoid()
        return gates

    def _of_positions(self, cells: Tensor, scale: Tensor | None) -> Tensor:
        """Gates of the positions of scale * features: (batch, C, P), (batch, C) -> (batch, 1, P)."""
        mean = cells.mean(2)
        query = self.spatial_query(mean if scale is None else mean * scale)
        if self.spatial_softmax == "channels":
            query = query.softmax(1)
        if self.spatial_softmax == "values" or must_be_called(self.spatial_value):
            values = self.spatial_value((cells if scale is None else cells * scale.unsqueeze(2)).mT).mT
            scores = query.unsqueeze(1) @ (values.softmax(2) if self.spatial_softmax == "values" else values)
        else:
            row = query @ self.spatial_value.weight
            scores = (row if scale is None else row * scale).unsqueeze(1) @ cells
            if self.spatial_value.bias is not None:
                scores = scores + (query @ self.spatial_value.bias)[:, None, None]
        return (scores.softmax(2) if self.spatial_softmax == "scores" else scores).sigmoid()

    def forward(self, features: Tensor) -> Tensor:
        cells = features.flatten(2)
        channels = self.channel_gates(self._of_channels(cells)[:, :, None, None])
        scale = channels.flatten(1) if self.layout == "sequential" else None
        positions = self.spatial_gates(self._of_positions(cells, scale).unflatten(2, features.shape[2:]))
        if self.layout == "sequential":
            return gated(features, channels, positions)
        gates = None if features.requires_grad or channels.requires_grad else channels + positions
        if gates is None or gates.dtype != features.dtype:
            return torch.addcmul(features * channels, features, positions)
        return gates.mul_(features)
