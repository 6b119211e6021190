"""The convolution gate against loops over its equations."""

import math

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.gate import ConvolutionGate


def convolve(maps: Tensor, layer: nn.Conv2d) -> Tensor:
    out = torch.zeros(len(layer.weight), *maps.shape[1:], dtype=maps.dtype)
    for o, kernel in enumerate(layer.weight):
        for y in range(maps.shape[1]):
            for x in range(maps.shape[2]):
                out[o, y, x] = layer.bias[o]
                for i in range(3):
                    for j in range(3):
                        row, column = y + i - 1, x + j - 1
                        if 0 <= row < maps.shape[1] and 0 <= column < maps.shape[2]:
                            out[o, y, x] += (kernel[:, i, j] * maps[:, row, column]).sum()
    return out


@torch.no_grad()
def test_loops_give_the_same() -> None:
    gate, x = ConvolutionGate(3, (2, 2)).double(), torch.randn(2, 3, 3, 4, dtype=torch.float64)
    with mereo.record(gate) as trace:
        out = gate(x)
    for image in range(2):
        maps = x[image]
        for place in (0, 2, 4):
            maps = convolve(maps, gate.layers[place])
            maps = maps.clamp(min=0) if place < 4 else maps
        shares = torch.tensor([[1 / (1 + math.exp(-value)) for value in row] for row in maps[0].tolist()])
        torch.testing.assert_close(out[image], x[image] * shares.double(), atol=1e-6, rtol=1e-5)
    assert trace["gates"].min() > 0 and trace["gates"].max() < 1 and trace["gates"].shape == (2, 1, 3, 4)


def test_its_size_and_wrong_widths() -> None:
    assert sum(p.numel() for p in ConvolutionGate(1024).parameters()) == 1_216_961
    with pytest.raises(UsageError, match="hidden"):
        ConvolutionGate(4, (3, 0))
