"""Gaussian adaptive attention of features: a value is weighted by its distance from the mean of its feature.

Source: Ioannides, Chadha, Elkins 2024, arXiv:2401.11143 (GAAM), section 4; details from the authors' experiments,
github.com/gioannides/DAAM-PEFT-paper-code.
Cost: one exponential and some ten operations a value; 2 D H parameters (D features, H heads).
"""

from math import isqrt
from typing import ClassVar

import torch
from torch import Tensor, nn

from mereo.core import Signal, mechanism
from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_positive
from mereo.mechanisms.gate.published import Names

LEAST_WIDTH = 1e-4
"""Least width c, which enters the equation to the first power; training may make it negative."""


def importance_factor(gates: Tensor) -> Tensor:
    """How much each layer and feature is let through, from 0 to 1: the mean gates of all samples, scaled to that range.

    Zeros where all are the same.

    Shapes: gates (samples, layers, features), as `mereo.record` shows them -> (layers, features).
    """
    means = gates.mean(0)
    low, high = means.min(), means.max()
    return (means - low) / (high - low).clamp(min=torch.finfo(means.dtype).tiny)


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return GAAMFeatures(6, layer_heads=1), (torch.randn(2, 7, 6),)


@mechanism(
    "gaam_features",
    family="gate",
    source="arXiv:2401.11143",
    records="gates",
    promises=("any sender order", "any receiver order", "any length"),
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    largest_input=1e15,  # the variance squares
    interface="tokens",
    example=_example,
)
class GAAMFeatures(nn.Module):
    """Multiply each value by a Gaussian of its distance from the mean of its feature over layers or tokens.

    w = exp(-(x - mean - delta)^2 / (2 c (var + 1e-5))),   out = x w

    Args:
        dim: features D.
        layer_heads: equal parts of the layers with mean, variance, delta and c of their own; the authors have 8 for
            24 layers, or 1.

    Shapes: layers or tokens (batch, L, D) -> the same; gates likewise, `layer_heads` divides L.

    Reads as: gates[b, l, d] is 1 where a value is at its mean + delta, and smaller further away.

    Reference: arXiv:2401.11143, section 4; c enters to the first power.
    """

    published_names: ClassVar[Names] = ({"offsets": "daams.*.mean_offset", "widths": "daams.*.c"},)

    def __init__(self, dim: int, layer_heads: int = 1) -> None:
        super().__init__()
        check_positive(dim=dim, layer_heads=layer_heads)
        self.offsets = nn.Parameter(torch.zeros(layer_heads, dim))
        self.widths = nn.Parameter(torch.full((layer_heads, dim), 2.0))
        self.gates = Signal("gates")

    def forward(self, x: Tensor) -> Tensor:
        heads = len(self.offsets)
        if x.shape[1] % heads:
            raise UsageError(f"layer_heads is {heads} for {x.shape[1]} layers; it must divide them.")
        wide = x.to(accumulation_type(x)).unflatten(1, (heads, -1))
        away = wide - wide.mean(2, keepdim=True)
        variance = away.square().mean(2, keepdim=True) + 1e-8
        squares = (away - self.offsets[:, None]).square() / (variance + 1e-5)
        weights = (-0.5 * squares / self.widths[:, None].clamp(min=LEAST_WIDTH)).exp()
        return x * self.gates(weights.flatten(1, 2).to(x.dtype))


class LayerStackHead(nn.Module):
    """Classify by the layers of a frozen network: each pooled to a vector, gated, and read by two convolutions.

    scores = W relu(conv(relu(conv(gate(x) as L maps of sqrt(D) x sqrt(D)))))

    Args:
        num_layers: L of the stack.
        dim: features D of each layer, a square number.
        num_classes: how many classes.
        layer_heads: see `GAAMFeatures`.
        hidden: channels between the convolutions.
        gate: another module (batch, L, D) -> the same, such as `nn.Identity()`.

    Shapes: (batch, L, D) -> (batch, num_classes).

    Reference: arXiv:2401.11143, section 4, and the authors' `DAAMModel`.
    """

    published_names: ClassVar[Names] = (
        {
            "gate.offsets": "daam.daams.*.mean_offset",
            "gate.widths": "daam.daams.*.c",
            "first": "conv1",
            "second": "conv2",
            "head": "fc",
        },
    )

    def __init__(
        self,
        num_layers: int,
        dim: int,
        num_classes: int,
        layer_heads: int = 1,
        hidden: int = 512,
        gate: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_positive(num_layers=num_layers, num_classes=num_classes, hidden=hidden)
        self.side = isqrt(dim)
        if self.side**2 != dim:
            raise UsageError(f"dim is {dim}; it must be a square number, such as {self.side**2}.")
        if num_layers % layer_heads:
            raise UsageError(f"layer_heads is {layer_heads}; it must divide num_layers, {num_layers}.")
        self.gate = GAAMFeatures(dim, layer_heads) if gate is None else gate
        self.first = nn.Conv2d(num_layers, hidden, 3, padding=1)
        self.second = nn.Conv2d(hidden, num_layers, 3, padding=1)
        self.head = nn.Linear(num_layers * dim, num_classes)
        for layer in (self.first, self.second, self.head):
            nn.init.xavier_uniform_(layer.weight)

    def forward(self, layers: Tensor) -> Tensor:
        maps = self.gate(layers).unflatten(2, (self.side, self.side))
        maps = torch.relu(self.second(torch.relu(self.first(maps))))
        scores: Tensor = self.head(maps.flatten(1))
        return scores
