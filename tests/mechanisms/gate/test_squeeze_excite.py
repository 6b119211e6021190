"""Squeeze and excite against its equations."""

import math

import pytest
import torch
from torch import nn

from mereo.errors import UsageError
from mereo.mechanisms.gate import SqueezeExcite


def test_zero_weights_halve_every_channel() -> None:
    gate = SqueezeExcite(4, 2)
    for parameter in gate.parameters():
        nn.init.zeros_(parameter)
    features = torch.randn(2, 4, 3, 3)
    torch.testing.assert_close(gate(features), features / 2)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.SiLU])
def test_loops_give_the_same(activation: type[nn.Module]) -> None:
    gate, features = SqueezeExcite(4, 3, activation).double(), torch.randn(2, 4, 3, 5, dtype=torch.float64)
    out = gate(features)
    for image in range(2):
        means = [features[image, c].sum() / 15 for c in range(4)]
        hidden = []
        for row, bias in zip(gate.squeeze.weight.flatten(1), gate.squeeze.bias, strict=True):
            hidden.append(activation()(sum(w * mean for w, mean in zip(row, means, strict=True)) + bias))
        for c in range(4):
            score = sum(w * h for w, h in zip(gate.excite.weight[c].flatten(), hidden, strict=True))
            share = 1 / (1 + math.exp(-(score + gate.excite.bias[c]).item()))
            torch.testing.assert_close(out[image, c], share * features[image, c])


def test_sizes_must_be_positive() -> None:
    with pytest.raises(UsageError, match="hidden"):
        SqueezeExcite(4, 0)
