"""Spatial gate: a gate computed by loops, and worked numbers."""

import torch
from mereo.mechanisms.gate.spatial_gate import SpatialGate


def test_zero_weights_halve_every_position() -> None:
    gate = SpatialGate()
    for parameter in gate.parameters():
        torch.nn.init.zeros_(parameter)
    features = torch.randn(2, 4, 3, 3)
    torch.testing.assert_close(gate(features), features / 2)


def test_a_position_is_decided_on_by_the_means_and_maxima_around_it() -> None:
    gate, features = SpatialGate(3).double(), torch.randn(1, 4, 5, 6, dtype=torch.float64)
    out = gate(features)
    for row in range(5):
        for column in range(6):
            score = gate.weights.bias[0]
            for i in range(3):
                for j in range(3):
                    y, x = row + i - 1, column + j - 1
                    if 0 <= y < 5 and 0 <= x < 6:
                        cell, (mean, maximum) = features[0, :, y, x], gate.weights.weight[0, :, i, j]
                        score = score + mean * cell.mean() + maximum * cell.max()
            torch.testing.assert_close(out[0, :, row, column], features[0, :, row, column] * score.sigmoid())
