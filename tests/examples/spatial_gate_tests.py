"""Spatial gate: a gate computed by loops, and worked numbers."""

import timm
import torch
from mereo.mechanisms.gate.spatial_gate import SpatialGate

import mereo


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


def test_it_stands_in_a_resnet_a_vit_and_a_network_of_timm() -> None:
    residual = mereo.create_model("resnet_cifar", blocks=1, mechanism="spatial_gate", mechanism_args={"kernel": 3})
    transformer = mereo.create_model("vit_tiny", depth=1, img_size=32, mechanism="spatial_gate")
    published = timm.create_model("resnet18")
    print(mereo.insert(published, "spatial_gate", where="stages", img_size=32))
    for network, gates in ((residual, 3), (transformer, 1), (published, 4)):
        assert sum(isinstance(module, SpatialGate) for module in network.modules()) == gates
        network(torch.randn(2, 3, 32, 32)).square().mean().backward()
