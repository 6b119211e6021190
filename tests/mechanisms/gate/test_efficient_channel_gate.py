"""The efficient channel gate against its equations."""

import math

import pytest
import torch
from torch import nn

from mereo.errors import UsageError
from mereo.mechanisms.gate import EfficientChannelGate
from mereo.mechanisms.gate.efficient_channel_gate import kernel_for


def test_loops_give_the_same() -> None:
    gate, features = EfficientChannelGate(6, kernel=5).double(), torch.randn(2, 6, 3, 4, dtype=torch.float64)
    out, weights = gate(features), gate.neighbours.weight.flatten().tolist()
    for image in range(2):
        means = [features[image, c].sum().item() / 12 for c in range(6)]
        for c in range(6):
            score = sum(w * means[c + i - 2] for i, w in enumerate(weights) if 0 <= c + i - 2 < 6)
            torch.testing.assert_close(out[image, c], features[image, c] / (1 + math.exp(-score)))


def test_a_zero_kernel_halves_every_channel() -> None:
    gate, features = EfficientChannelGate(4), torch.randn(2, 4, 3, 3)
    nn.init.zeros_(gate.neighbours.weight)
    torch.testing.assert_close(gate(features), features / 2)


@pytest.mark.parametrize(("channels", "kernel"), [(1, 3), (64, 3), (128, 5), (256, 5), (512, 5), (2048, 7)])
def test_the_kernel_grows_with_the_logarithm_of_the_channels(channels: int, kernel: int) -> None:
    assert kernel_for(channels) == kernel
    assert EfficientChannelGate(channels).neighbours.kernel_size == (kernel,)


def test_kernels_are_odd() -> None:
    for kernel in (4, 17, 0):
        with pytest.raises(UsageError, match=f"kernel is {kernel}; for 8 channels it must be odd, from 1 to 15"):
            EfficientChannelGate(8, kernel=kernel)
    assert EfficientChannelGate(1)(torch.ones(1, 1, 2, 2)).shape == (1, 1, 2, 2)
    with pytest.raises(UsageError, match="channels"):
        EfficientChannelGate(0)
