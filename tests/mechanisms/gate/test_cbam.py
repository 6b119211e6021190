"""CBAM against loops over its equations."""

import math

import pytest
import torch
from torch import nn

from mereo.errors import UsageError
from mereo.mechanisms.gate import CBAM


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


@torch.no_grad()
def test_loops_give_the_same() -> None:
    gate, x = CBAM(4, 2, kernel=3).double().eval(), torch.randn(2, 4, 3, 4, dtype=torch.float64)
    gate.norm.running_mean.fill_(0.2), gate.norm.running_var.fill_(1.5)
    out, first, second, mix = gate(x), gate.squeeze.weight.tolist(), gate.excite.weight.tolist(), gate.mix.weight[0]
    for image in range(2):
        scores = [0.0] * 4
        for pooled in (x[image].sum((1, 2)) / 12, x[image].flatten(1).max(1).values):
            hidden = [max(sum(w * v for w, v in zip(row, pooled.tolist(), strict=True)), 0.0) for row in first]
            for c, row in enumerate(second):
                scores[c] += sum(w * h for w, h in zip(row, hidden, strict=True))
        u = torch.stack([x[image, c] * sigmoid(scores[c]) for c in range(4)])
        maps = [u.sum(0) / 4, u.max(0).values]
        for i in range(3):
            for j in range(4):
                places = [(a, b) for a in range(3) for b in range(3) if 0 <= i + a - 1 < 3 and 0 <= j + b - 1 < 4]
                score = sum((mix[m, a, b] * maps[m][i + a - 1, j + b - 1]).item() for m in range(2) for a, b in places)
                torch.testing.assert_close(
                    out[image, :, i, j], u[:, i, j] * sigmoid((score - 0.2) / math.sqrt(1.50001))
                )


def test_the_input_is_not_changed_in_place() -> None:
    gate, x = CBAM(4, 2).eval(), torch.randn(1, 4, 5, 5)
    kept = x.clone()
    with torch.no_grad():
        plain = gate(x)
    assert torch.equal(x, kept)
    torch.testing.assert_close(gate(x.requires_grad_()), plain)


def test_zero_weights_quarter_the_map() -> None:
    gate, x = CBAM(4, 2).eval(), torch.randn(2, 4, 5, 3)
    nn.init.zeros_(gate.squeeze.weight), nn.init.zeros_(gate.mix.weight)
    torch.testing.assert_close(gate(x), 0.25 * x)


def test_kernels_are_odd() -> None:
    with pytest.raises(UsageError, match="kernel is 4"):
        CBAM(4, 2, kernel=4)
