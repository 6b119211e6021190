"""RG-LRU: loops in float64 from the equations, worked numbers, its start."""

import math

import torch

from mereo.mechanisms.scan import RGLRU


def test_the_layer_equals_its_equations() -> None:
    layer, u = RGLRU(4).double(), torch.randn(2, 7, 4, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    expected = torch.zeros(2, 7, 4, dtype=torch.float64)
    for sample in range(2):
        h = torch.zeros(4, dtype=torch.float64)
        for i in range(7):
            gates = 1 / (1 + (-(layer.to_gates.weight @ u[sample, i] + layer.to_gates.bias)).exp())
            a = (-8 * (1 + layer.decay.exp()).log() * gates[:4]).exp()
            h = a * h + (1 - a**2).sqrt() * gates[4:] * u[sample, i]
            expected[sample, i] = h
    torch.testing.assert_close(layer(u), expected)


def test_worked_numbers() -> None:
    layer = RGLRU(1).double()
    with torch.no_grad():
        layer.to_gates.weight.zero_()
        layer.decay.fill_(math.log(math.expm1(0.1)))  # softplus is 0.1, and sigmoid(0) = 1 / 2
    a = math.exp(-8 * 0.1 / 2)
    first = math.sqrt(1 - a * a) / 2
    out = layer(torch.tensor([[[1.0], [2.0]]], dtype=torch.float64)).flatten().tolist()
    assert math.isclose(out[0], first) and math.isclose(out[1], a * first + 2 * first)


def test_it_starts_with_slow_decays() -> None:
    kept = (-8 * torch.nn.functional.softplus(RGLRU(1000).decay.detach())).exp()
    assert (kept > 0.9 - 1e-4).all() and (kept < 0.999 + 1e-4).all() and abs(float(kept.mean()) - 0.9495) < 0.005


def test_a_closed_gate_keeps_the_state_without_an_infinite_gradient() -> None:
    layer = RGLRU(2)
    with torch.no_grad():
        layer.to_gates.bias[:2] = -200  # the gate is 0, so that a is 1 and its input's root is 0
    u = torch.randn(1, 4, 2, requires_grad=True)
    layer(u).sum().backward()
    assert u.grad is not None and u.grad.isfinite().all()
