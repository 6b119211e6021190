"""Gaussian adaptive attention against the product of densities, and worked weights."""

import math

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.gate import GAAM

X = torch.tensor([[1.0], [2.0], [3.0], [6.0]]).T


def gate_of(widths: list[float], offsets: list[float]) -> GAAM:
    gate = GAAM(heads=1, gaussians=len(widths), num_axes=2)
    gate.widths.data, gate.offsets.data = torch.tensor([widths]), torch.tensor([offsets])
    return gate


def product(values: list[float], widths: list[float], offsets: list[float]) -> list[float]:
    """The normalised product of densities, one by one."""
    mean = sum(values) / len(values)
    variance = sum((v - mean) ** 2 for v in values) / (len(values) - 1) + 1e-8
    weights = []
    for value in values:
        density = 1.0
        for c, delta in zip(widths, offsets, strict=True):
            u = (value - mean - delta) / math.sqrt(variance)
            density *= math.exp(-(u**2) / (2 * c**2)) / math.sqrt(2 * math.pi * c**2)
        weights.append(density)
    return [w / sum(weights) for w in weights]


def test_loops_give_the_same() -> None:
    gate = GAAM(heads=3, gaussians=2).double()
    nn.init.uniform_(gate.widths, 0.5, 3), nn.init.normal_(gate.offsets)
    for length in (9, 11):  # in the second the last head takes five
        x = torch.randn(2, length, 2, 3, dtype=torch.float64)
        out = gate(x)
        for image in range(2):
            for place in ((i, j) for i in range(2) for j in range(3)):
                values = x[(image, slice(None), *place)].tolist()
                parts = [values[:3], values[3:6], values[6:]]
                heads = zip(parts, gate.widths.tolist(), gate.offsets.tolist(), strict=True)
                weights = [w for part, c, delta in heads for w in product(part, c, delta)]
                expected = [v * w for v, w in zip(values, weights, strict=True)]
                assert out[(image, slice(None), *place)].tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("widths", "offsets", "weights"),
    [
        ([1.0, 2.0], [0.0, 1.0], [0.1943, 0.3063, 0.3695, 0.1300]),
        ([1.0], [0.0], [0.2223, 0.3065, 0.3412, 0.1301]),
        ([2.0], [0.0], [0.2456, 0.2662, 0.2734, 0.2148]),
    ],
)
def test_worked_weights(widths: list[float], offsets: list[float], weights: list[float]) -> None:
    out = gate_of(widths, offsets)(X)
    assert (out / X).flatten().tolist() == pytest.approx(weights, abs=1e-4)
    assert product(X.flatten().tolist(), widths, offsets) == pytest.approx(weights, abs=1e-4)


def test_parameters_of_the_library_s_block() -> None:
    assert sum(p.numel() for _ in range(3) for p in GAAM(4, 5).parameters()) == 120


def recorded(gate: GAAM, x: Tensor) -> Tensor:
    with mereo.record(gate) as trace:
        gate(x)
    return trace.steps("gates")[0]


def test_weights_sum_to_one_in_each_head_and_follow_shifts_and_scales() -> None:
    gate, x = GAAM(heads=4), torch.randn(2, 16, 3, 3)
    weights = recorded(gate, x)
    torch.testing.assert_close(weights.unflatten(1, (4, 4)).sum(2), torch.ones(2, 4, 3, 3))
    torch.testing.assert_close(recorded(gate, x + 5), weights, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(recorded(gate, 3 * x), weights, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(GAAM.forward(gate, x), x * weights)
    gate.residual = True
    torch.testing.assert_close(gate(x), x + x * weights)


def test_wide_gaussians_average_and_narrow_ones_choose_the_nearest() -> None:
    torch.testing.assert_close(gate_of([1e6], [0.0])(X), X / 4)
    torch.testing.assert_close(gate_of([1e-3], [2.5])(X), torch.tensor([[0.0, 0.0, 0.0, 6.0]]))
    assert gate_of([0.0], [0.0])(X).isfinite().all()


def test_many_gaussians_far_away_still_sum_to_one() -> None:
    gate = gate_of([0.05] * 40, [9.0] * 40)
    assert recorded(gate, X).sum().item() == pytest.approx(1)
    assert sum(math.exp(-((x - 12) ** 2) / 2 / 0.05**2) for x in (1, 2, 3, 6)) == 0  # where the product underflows


def test_padding_takes_no_part() -> None:
    padded = torch.tensor([[1.0, -1.0, 2.0, 3.0, -1.0, 6.0]])
    gate = GAAM(heads=1, gaussians=1, num_axes=2, padding_value=-1.0)
    nn.init.ones_(gate.widths)
    out = gate(padded)
    assert out[padded == -1].tolist() == [-1.0, -1.0]
    assert out[padded != -1].tolist() == pytest.approx([0.2223, 0.6130, 1.0235, 0.7804], abs=1e-4)
    legacy = GAAM(heads=1, gaussians=1, num_axes=2, padding_value=-1.0, legacy_padding=True)
    nn.init.ones_(legacy.widths)
    values = [1.0, 0.0, 2.0, 3.0, 0.0, 6.0]
    deviation = torch.tensor(values).std()
    u = (padded - 2) / deviation
    expected = (-u.square() / 2).softmax(1) * padded
    torch.testing.assert_close(legacy(padded)[padded != -1], expected[padded != -1])
    assert gate(torch.full((1, 4), -1.0)).tolist() == [[-1.0] * 4]


def test_any_axis_and_no_head_of_one_value() -> None:
    x = torch.randn(2, 3, 8)
    torch.manual_seed(1)
    along = GAAM(2, 3, axis=-1, num_axes=3)
    across = GAAM(2, 3, axis=1, num_axes=3)
    across.load_state_dict(along.state_dict())
    torch.testing.assert_close(along(x), across(x.mT).mT)
    with pytest.raises(UsageError, match="heads of GAAM is 4"):
        GAAM(4)(torch.randn(1, 7, 2, 2))
    with pytest.raises(UsageError, match="axis is 2"):
        GAAM(axis=2, num_axes=2)
