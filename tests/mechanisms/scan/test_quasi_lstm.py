"""Quasi-LSTM: loops in float64 from the equations, its exponential gate, counts, and streaming."""

import math

import pytest
import torch
from torch import nn

from mereo.errors import UsageError
from mereo.mechanisms.scan import QuasiLSTM
from mereo.mechanisms.scan.quasi_lstm import GATES


@pytest.mark.parametrize("gate", GATES)
def test_the_layer_equals_its_equations(gate: str) -> None:
    layer, u = QuasiLSTM(3, gate=gate).double(), torch.randn(2, 7, 3, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    expected = torch.zeros(2, 7, 3, dtype=torch.float64)
    for sample in range(2):
        h, inputs = torch.zeros(6, dtype=torch.float64), [torch.zeros(6, dtype=torch.float64)] * 3
        for i in range(7):
            both = layer.inner.weight @ u[sample, i]
            inputs = [*inputs, both[6:]]
            x = layer.conv.bias + sum(layer.conv.weight[:, 0, j] * inputs[-4 + j] for j in range(4))
            gates = layer.to_gates.weight @ x + layer.to_gates.bias
            entering, leaving = (1 / (1 + (-part).exp()) for part in (gates[6:12], gates[12:]))
            a = 1 / (1 + (-gates[:6]).exp())
            if layer.alpha is not None:
                a = (1 - a) ** layer.alpha.clamp(min=0)
            h = a * h + entering * x
            expected[sample, i] = layer.proj.weight @ (nn.functional.gelu(both[:6]) * leaving * h)
    torch.testing.assert_close(layer(u), expected)


def test_the_exponential_gate_is_the_gate_of_s6() -> None:
    z, alpha = 0.7, 1.3
    assert math.isclose(math.exp(-alpha * math.log1p(math.exp(z))), 0.238320, abs_tol=5e-7)
    layer = QuasiLSTM(2, 1, gate="exponential")
    assert layer.alpha is not None
    with torch.no_grad():
        layer.to_gates.weight.zero_()
        layer.to_gates.bias.fill_(z)
        layer.alpha.fill_(alpha)
    gates = layer.recurrence(torch.randn(1, 3, 2)).Lambda
    torch.testing.assert_close(gates, torch.full_like(gates, 0.238320), rtol=0, atol=1e-6)


def test_its_parameters() -> None:
    counts = [sum(p.numel() for p in QuasiLSTM(8, gate=gate).parameters()) for gate in GATES]
    assert counts == [1280, 1281]
    with pytest.raises(UsageError, match="gate"):
        QuasiLSTM(8, gate="tanh")


@pytest.mark.parametrize("gate", GATES)
def test_parts_of_any_length_go_on_from_the_state(gate: str) -> None:
    layer, u = QuasiLSTM(4, gate=gate), torch.randn(2, 11, 4)
    whole, state, parts = layer(u), None, []
    for part in u.split([0, 1, 2, 0, 5, 3], 1):
        out, state = layer.extend(part, state)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-5, atol=1e-6)
    assert state is not None and state.before is not None and state.before.shape == (2, 3, 8)
