"""ULSAM against a loop over groups and positions, its counts and worked maps."""

import math

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.core.operations import forward_operations
from mereo.errors import UsageError
from mereo.mechanisms.gate import ULSAM
from mereo.mechanisms.gate.ulsam import maximum_3x3


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def normed(value: Tensor, norm: nn.Module, channel: int) -> Tensor:
    if isinstance(norm, nn.Identity):
        return value
    centred = (value - norm.running_mean[channel]) / (norm.running_var[channel] + norm.eps).sqrt()
    return (centred * norm.weight[channel] + norm.bias[channel]).relu()


@pytest.mark.parametrize("batch_norm", [True, False])
@torch.no_grad()
def test_loops_give_the_same(batch_norm: bool) -> None:
    gate, x = ULSAM(6, 2, batch_norm).double().eval(), torch.randn(2, 6, 3, 4, dtype=torch.float64)
    for tensor in gate.state_dict().values():
        if tensor.is_floating_point():
            nn.init.uniform_(tensor, 0.2, 1.5)
    out = gate(x)
    for image in range(2):
        for group in range(2):
            scores = torch.zeros(3, 4, dtype=torch.float64)
            for i in range(3):
                for j in range(4):
                    around = [(a, b) for a in (i - 1, i, i + 1) for b in (j - 1, j, j + 1) if 0 <= a < 3 and 0 <= b < 4]
                    total = gate.point.bias[group].clone() if batch_norm else torch.zeros(())
                    for d in range(3):
                        c = 3 * group + d
                        shift = gate.scale.bias[c] if batch_norm else 0
                        pooled = max(
                            normed(gate.scale.weight[c, 0, 0, 0] * x[image, c, a, b] + shift, gate.scale_norm, c)
                            for a, b in around
                        )
                        total = total + gate.point.weight[group, d, 0, 0] * pooled
                    scores[i, j] = normed(total, gate.point_norm, group)
            shares = scores.exp() / scores.exp().sum()
            for c in range(3 * group, 3 * group + 3):
                torch.testing.assert_close(out[image, c], x[image, c] * (1 + shares))


@pytest.mark.parametrize("size", [(1, 1), (1, 4), (5, 1), (2, 2), (6, 7)])
@pytest.mark.parametrize("batch_norm", [True, False])
def test_without_gradients_it_computes_the_same(size: tuple[int, int], batch_norm: bool) -> None:
    gate, x = ULSAM(6, 2, batch_norm).eval(), torch.randn(2, 6, *size)
    assert torch.equal(maximum_3x3(x), torch.nn.functional.max_pool2d(x, 3, 1, 1))
    for tensor in gate.state_dict().values():
        if tensor.is_floating_point():
            nn.init.uniform_(tensor, 0.2, 1.5)
    before, expected = x.clone(), gate(x)
    with torch.no_grad():
        torch.testing.assert_close(gate(x), expected)
    assert torch.equal(x, before)


def test_parameters() -> None:
    assert [count(ULSAM(512, g)) for g in (1, 2, 4, 8, 16)] == [2563, 2566, 2572, 2584, 2608]
    assert count(ULSAM(160, 4)) == 812 and count(ULSAM(1024, 4)) == 5132
    assert count(ULSAM(512, 4, batch_norm=False)) == 1024


def test_multiply_adds() -> None:
    assert forward_operations(ULSAM(512, 4), torch.zeros(1, 512, 14, 14)) == 2 * (2 * 512 * 14 * 14)


def test_a_group_adds_one_share_that_sums_to_one_and_sees_no_other_group() -> None:
    gate, x = ULSAM(8, 2).eval(), torch.rand(2, 8, 5, 3) + 1
    grown = gate(x) / x - 1
    assert grown.min() >= 0 and grown.max() <= 1
    torch.testing.assert_close(grown.sum((2, 3)), torch.ones(2, 8), rtol=0, atol=1e-5)
    torch.testing.assert_close(grown[:, :4], grown[:, :1].expand(-1, 4, -1, -1), rtol=0, atol=1e-6)
    other = torch.cat((torch.rand(2, 4, 5, 3), x[:, 4:]), 1)
    assert torch.equal(gate(other)[:, 4:], gate(x)[:, 4:]) and not torch.equal(gate(other)[:, :4], gate(x)[:, :4])


def test_equal_scores_add_an_equal_share() -> None:
    gate, x = ULSAM(8, 4).eval(), torch.randn(2, 8, 5, 3)
    nn.init.zeros_(gate.point.weight)
    torch.testing.assert_close(gate(x), x * (1 + 1 / 15))


@pytest.mark.parametrize(
    ("rows", "shares", "out"),
    [
        ([[0.0, 0.0, 0.0, 2.0]], [0.0596, 0.0596, 0.4404, 0.4404], [0.0, 0.0, 0.0, 2.8808]),
        ([[0.0, 1.0], [2.0, 3.0]], [0.25] * 4, [0.0, 1.25, 2.5, 3.75]),
    ],
)
def test_worked_maps(rows: list[list[float]], shares: list[float], out: list[float]) -> None:
    gate = ULSAM(1, 1, batch_norm=False)
    for layer in (gate.scale, gate.point):
        nn.init.ones_(layer.weight)
    with mereo.record(gate) as trace:
        made = gate(torch.tensor(rows)[None, None])
    assert trace.steps("coupling")[0].flatten().tolist() == pytest.approx(shares, abs=1e-4)
    assert made.flatten().tolist() == pytest.approx(out, abs=1e-4)


def test_channels_of_a_group_have_no_order() -> None:
    gate, x, order = ULSAM(6, 2).eval(), torch.randn(2, 6, 4, 4), [2, 0, 1, 3, 4, 5]
    expected = gate(x)[:, order]
    gate.scale.weight.data, gate.scale.bias.data = gate.scale.weight[order], gate.scale.bias[order]
    gate.point.weight.data[0] = gate.point.weight[0, [2, 0, 1]]
    torch.testing.assert_close(gate(x[:, order]), expected)


def test_groups_divide_the_channels() -> None:
    with pytest.raises(UsageError, match="subspaces is 4"):
        ULSAM(6, 4)
    assert math.isclose(ULSAM(8).scale_norm.momentum, 0.1) and ULSAM(8, momentum=0.9).point_norm.momentum == 0.9
