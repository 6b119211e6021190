"""Gaussian adaptive attention: values weighted by their likelihood under learned Gaussians around their mean.

Source: Ioannides, Chadha, Elkins 2024, arXiv:2401.11143 (GAAM), section 3; details from the authors' library,
github.com/gioannides/Gaussian-Adaptive-Attention.
Cost: one exponential and some ten operations a value; 2 N H parameters (N Gaussians, H heads).
"""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from mereo.core import Signal, mechanism
from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_positive
from mereo.mechanisms.gate.published import Names

EPSILON = 1e-8
LEAST_WIDTH = 1e-6
"""Least width c of a Gaussian; smaller ones count as this."""


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return GAAM(heads=2, gaussians=3), (torch.randn(2, 8, 6, 5),)


@mechanism(
    "gaam",
    family="gate",
    source="arXiv:2401.11143",
    records="gates",
    promises=("any sender order", "any receiver order", "any length"),
    sender_axes={"0": 2},
    receiver_axes={"0": 2, "output": 2},
    largest_input=1e15,  # the variance squares
    interface="maps",
    example=_example,
)
class GAAM(nn.Module):
    """Multiply each value by its share of the likelihood of all values along an axis, under a product of Gaussians.

    w = softmax over the axis of -sum_i (x - mean - delta_i)^2 / (2 var c_i^2),   out = x w

    Args:
        heads: equal parts of the axis with Gaussians and statistics of their own; the last one takes the rest.
        gaussians: how many are multiplied.
        axis: along which mean, variance and the softmax are taken; 1 are the channels of a map.
        residual: add the input, as a block of the authors does; weights have a mean of heads / length, so that without
            it the output is that much smaller.
        num_axes: of the input: 4 of maps, 3 of (batch, layers, features), at least 2.
        padding_value: entries with this value stay as they are, and take no part; None for no such entry.
        legacy_padding: whether padding counts as zeros in mean and variance and takes part in the softmax, as in the
            authors' library.

    Shapes: any with at least two axes, such as (batch, channels, height, width) -> the same; gates likewise.

    Reads as: gates sum to one along the axis within each head.

    Deviates: a product of Gaussians is one Gaussian, so that its exponent is computed at once, in logarithms; it
    never underflows. The reference divides by at least 1e-8, and its weights sum to less than one where all are small.

    Reference: arXiv:2401.11143, eq. 1 to 6.
    """

    published_names: ClassVar[Names] = ({"offsets": "attention_heads.*.mean_offsets", "widths": "attention_heads.*.c"},)

    def __init__(
        self,
        heads: int = 4,
        gaussians: int = 5,
        axis: int = 1,
        residual: bool = False,
        num_axes: int = 4,
        padding_value: float | None = None,
        legacy_padding: bool = False,
    ) -> None:
        super().__init__()
        check_positive(heads=heads, gaussians=gaussians)
        if num_axes < 2 or not -num_axes <= axis < num_axes:
            raise UsageError(f"axis is {axis} with num_axes {num_axes}; it must be one of at least 2 axes.")
        self.input_axes = [num_axes]
        self.heads, self.axis, self.residual = heads, axis, residual
        self.padding_value, self.legacy_padding = padding_value, legacy_padding
        self.offsets = nn.Parameter(torch.zeros(heads, gaussians))
        self.widths = nn.Parameter(torch.randn(heads, gaussians).exp())
        self.gates = Signal("gates")

    def combined(self) -> tuple[Tensor, Tensor]:
        """The product of each head's Gaussians: precision in units of 1 / var, offset from the mean, (heads) each."""
        precisions = 1 / self.widths.square().clamp(min=LEAST_WIDTH**2)
        total = precisions.sum(1)
        return total, (precisions * self.offsets).sum(1) / total

    def _weights(self, x: Tensor, precision: Tensor, offset: Tensor) -> Tensor:
        """Weights of values (..., length of a head, rest), for precision and offset broadcastable to them."""
        if self.padding_value is None:
            mean, there = x.mean(-2, keepdim=True), None
            away = x - mean
            variance = away.square().sum(-2, keepdim=True) / (x.shape[-2] - 1)
        else:
            there = x != self.padding_value
            kept = torch.where(there, x, 0)
            count = x.new_tensor(x.shape[-2]) if self.legacy_padding else there.sum(-2, keepdim=True)
            mean = kept.sum(-2, keepdim=True) / count.clamp(min=1)
            away = x - mean
            counted = kept - mean if self.legacy_padding else torch.where(there, away, 0)
            variance = counted.square().sum(-2, keepdim=True) / (count - 1).clamp(min=1)
        scores = (away - offset).square() * (-0.5 * precision / (variance + EPSILON))
        if there is None or self.legacy_padding:
            # PyTorch's softmax over an axis that is not the last one takes twice as long.
            grown = (scores - scores.amax(-2, keepdim=True)).exp_()
            return grown * (1 / grown.sum(-2, keepdim=True))
        return scores.masked_fill(~there, torch.finfo(scores.dtype).min).softmax(-2) * there

    def forward(self, x: Tensor) -> Tensor:
        axis = self.axis % x.dim()
        length, width = x.shape[axis], x.shape[axis] // self.heads
        if width < 2:
            raise UsageError(
                f"heads of {type(self).__name__} is {self.heads}, and axis {self.axis} of {tuple(x.shape)} has {length}"
                f" values; it must have {2 * self.heads} or more."
            )
        values = x.reshape(-1, length, math.prod(x.shape[axis + 1 :]))
        wide = values.to(accumulation_type(values))
        precision, offset = (each.to(wide.dtype) for each in self.combined())
        if length % self.heads == 0:
            parts = wide.unflatten(1, (self.heads, width))
            weights = self._weights(parts, precision[:, None, None], offset[:, None, None]).flatten(1, 2)
        else:
            sizes = [width] * (self.heads - 1) + [length - width * (self.heads - 1)]
            each = zip(wide.split(sizes, 1), precision, offset, strict=True)
            weights = torch.cat([self._weights(part, p, o) for part, p, o in each], 1)
        gates: Tensor = self.gates(weights.to(x.dtype).reshape(x.shape))
        out = x * gates
        if self.padding_value is not None:
            out = torch.where(x == self.padding_value, x, out)
        return x + out if self.residual else out
