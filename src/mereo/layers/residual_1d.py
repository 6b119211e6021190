"""A residual network of nine convolutions over time, in groups of three.

Source: Xu, Wang 2018, arXiv:1801.02475; padding and sizes follow Qingyang-Xu/Ensem-NN.
Cost: k C C' multiply-adds a step and convolution; linear in the steps.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Coupling
from mereo.errors import UsageError

GROUP = 3
"""Units between two shortcuts."""
EPS = 1e-3
"""Of every batch normalisation."""
BLOCK_ATTENTION = ("none", "time", "legacy")


def same_padding(length: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and behind a sequence that is convolved to ceil(length / stride) steps; an odd one stands behind.

    A kernel of 8 takes (3, 4) with stride 1, and (3, 3) with stride 2 of an even length.
    """
    total = max((-(-length // stride) - 1) * stride + kernel - length, 0)
    return total // 2, total - total // 2


class SameConv1d(nn.Conv1d):
    """A convolution with the padding of `same_padding`: (batch, in, steps) -> (batch, out, ceil(steps / stride))."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, groups=groups)
        nn.init.kaiming_normal_(self.weight)
        assert self.bias is not None
        nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        padding = same_padding(input.shape[-1], self.kernel_size[0], self.stride[0])
        return super().forward(F.pad(input, padding))


class BlockAttention(nn.Module):
    """A weight for each step: softmax over time, or over one score in the released code, where it is always 1.

    r_t = w relu(W h_t + b) + c;   weight = softmax_t(r), or 1 for "legacy", whose two layers have no gradient

    c cancels in the softmax over time, so it is not trained.

    Shapes: steps (batch, channels, steps) -> (batch, 1, steps).
    """

    def __init__(self, channels: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.hidden, self.score = nn.Conv1d(channels, 2 * channels, 1), nn.Conv1d(2 * channels, 1, 1)
        self.coupling = Coupling("senders") if kind == "time" else None
        if kind == "time":  # what is added to the scores of all steps cancels in a softmax over them
            cast(Tensor, self.score.bias).requires_grad_(False)

    def forward(self, steps: Tensor) -> Tensor:
        scores: Tensor = self.score(self.hidden(steps).relu())
        if self.coupling is None:
            return scores.softmax(1)
        weights: Tensor = self.coupling(scores.unsqueeze(1))
        return weights.squeeze(1)


class ResidualUnit(nn.Sequential):
    """drop(relu(norm(conv(x)))), or conv(drop(relu(norm(x)))) with `pre_activation`."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int, drop: float, groups: int, pre_activation: bool,
        momentum: float,
    ) -> None:  # fmt: skip
        convolution = SameConv1d(inputs, outputs, kernel, stride, groups)
        norm = nn.BatchNorm1d(inputs if pre_activation else outputs, eps=EPS, momentum=momentum)
        after = (norm, nn.ReLU(), nn.Dropout(drop))
        super().__init__(*((*after, convolution) if pre_activation else (convolution, *after)))


class Residual1d(nn.Module):
    """A convolution, nine residual units, and the mean over time.

    s = s' + unit(unit(unit(s')))   for each width, where s' is a convolution of size one if the width changes

    Args:
        inputs: channels of a step.
        widths: of the groups of three units; all but the first start with stride 2.
        kernel: steps of the convolutions.
        drop: probability of dropout in the units.
        groups: networks side by side that share nothing, as one grouped convolution; sizes are of one of them.
        pre_activation: normalise before the convolutions.
        final_norm: normalise and rectify once more at the end.
        block_attention: "time" multiplies each group's sum by a softmax over time of its branch, "legacy" by 1.
        momentum: share of a batch in the running statistics.

    Shapes: (batch, groups * inputs, steps) -> (batch, groups, widths[-1]).

    Reads as: `attention.N.coupling`, couplings[b, 0, 0, t], is the share of step t in the group N.

    Reference: arXiv:1801.02475.
    """

    def __init__(
        self,
        inputs: int,
        widths: tuple[int, ...] = (64, 128, 256),
        *,
        kernel: int = 8,
        drop: float = 0.0,
        groups: int = 1,
        pre_activation: bool = False,
        final_norm: bool = True,
        block_attention: str = "none",
        momentum: float = 0.01,
    ) -> None:
        super().__init__()
        if not widths:
            raise UsageError("widths is (); give the channels of each group of units.")
        self.groups = groups
        self.stem = SameConv1d(groups * inputs, groups * widths[0], kernel, groups=groups)
        self.units, self.shortcuts, self.attention = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        before = widths[0]
        for number, width in enumerate(widths):
            stride = 2 if number else 1
            for place in range(GROUP):
                first = place == 0
                sizes = groups * (before if first else width), groups * width
                self.units.append(
                    ResidualUnit(*sizes, kernel, stride if first else 1, drop, groups, pre_activation, momentum)
                )
            shortcut = SameConv1d(groups * before, groups * width, 1, stride, groups) if number else nn.Identity()
            self.shortcuts.append(shortcut)
            if block_attention != "none":
                self.attention.append(BlockAttention(groups * width, block_attention))
            before = width
        self.norm = nn.BatchNorm1d(groups * before, eps=EPS, momentum=momentum) if final_norm else None

    def maps(self, steps: Tensor) -> Tensor:
        """The features of each step: (batch, groups * inputs, steps) -> (batch, groups * width, fewer steps)."""
        total: Tensor = self.stem(steps)
        for number, shortcut in enumerate(self.shortcuts):
            branch = total
            for unit in list(self.units)[GROUP * number : GROUP * (number + 1)]:
                branch = unit(branch)
            total = shortcut(total) + branch
            if len(self.attention):
                total = total * self.attention[number](branch)
        return total if self.norm is None else torch.relu(self.norm(total))

    def forward(self, steps: Tensor) -> Tensor:
        return self.maps(steps).mean(-1).unflatten(1, (self.groups, -1))
