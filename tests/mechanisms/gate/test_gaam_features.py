"""Gaussian adaptive attention of features against loops, its head and its importance factor."""

import math

import pytest
import torch
from torch import nn

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.gate import GAAMFeatures, LayerStackHead, importance_factor


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_loops_give_the_same() -> None:
    gate, x = GAAMFeatures(3, layer_heads=2).double(), torch.randn(2, 6, 3, dtype=torch.float64)
    nn.init.normal_(gate.offsets), nn.init.uniform_(gate.widths, 0.5, 3)
    out = gate(x)
    for image, head, d in ((i, h, d) for i in range(2) for h in range(2) for d in range(3)):
        values = x[image, 3 * head : 3 * head + 3, d].tolist()
        mean = sum(values) / 3
        variance = abs(sum(v * v for v in values) / 3 - mean**2) + 1e-8
        for place, value in enumerate(values):
            u = (value - mean - gate.offsets[head, d].item()) / math.sqrt(variance + 1e-5)
            weight = math.exp(-(u**2) / (2 * gate.widths[head, d].item()))
            assert out[image, 3 * head + place, d].item() == pytest.approx(value * weight)


def test_worked_values() -> None:
    out = GAAMFeatures(1)(torch.tensor([[[1.0], [2.0], [6.0]]]))
    assert out.flatten().tolist() == pytest.approx([0.8071, 1.8957, 3.7048], abs=1e-4)


def test_a_gate_is_one_exactly_at_the_mean() -> None:
    gate = GAAMFeatures(1)
    nn.init.constant_(gate.offsets, 1.0)
    with mereo.record(gate) as trace:
        gate(torch.tensor([[[1.0], [4.0], [4.0]]]))
    gates = trace.steps("gates")[0].flatten()
    assert gates[1:].tolist() == [1.0, 1.0] and gates[0] < 1
    nn.init.constant_(gate.widths, -1.0)
    assert gate(torch.randn(1, 4, 1)).isfinite().all()


def test_parameters() -> None:
    assert [count(GAAMFeatures(dim, heads)) for dim in (1024, 5120) for heads in (8, 1)] == [16384, 2048, 81920, 10240]
    head = LayerStackHead(24, 1024, 100, layer_heads=8)
    assert (count(head.first) + count(head.second), count(head.head), count(head)) == (221_720, 2_457_700, 2_695_804)
    assert count(LayerStackHead(24, 1024, 100)) == 2_681_468


def test_the_head_learns_which_layer_to_read() -> None:
    layers = torch.randn(32, 4, 9)
    labels = (layers[:, 2, 0] > 0).long()
    head = LayerStackHead(4, 9, 2, layer_heads=2, hidden=8)
    optimizer = torch.optim.Adam(head.parameters(), 0.02)
    for _ in range(60):
        loss = nn.functional.cross_entropy(head(layers), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
    assert LayerStackHead(4, 9, 2, gate=nn.Identity())(layers).shape == (32, 2)


def test_importance_is_scaled_to_one() -> None:
    factor = importance_factor(torch.rand(5, 4, 3))
    assert factor.shape == (4, 3) and factor.min() == 0 and factor.max() == 1
    assert torch.equal(importance_factor(torch.ones(5, 4, 3)), torch.zeros(4, 3))


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="layer_heads is 2 for 5 layers"):
        GAAMFeatures(4, 2)(torch.randn(1, 5, 4))
    with pytest.raises(UsageError, match="dim is 10"):
        LayerStackHead(4, 10, 2)
    with pytest.raises(UsageError, match="layer_heads is 3"):
        LayerStackHead(4, 9, 2, layer_heads=3)
