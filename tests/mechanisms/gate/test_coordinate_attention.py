"""Coordinate attention against loops over its equations."""

import math

import torch
from torch import Tensor, nn

from mereo.mechanisms.gate import CoordinateAttention


def column(gate: CoordinateAttention, means: Tensor, last: nn.Module) -> list[float]:
    """Gates of the channels for the means of one row or column."""
    hidden = []
    for h, row in enumerate(gate.squeeze.weight[:, :, 0]):
        value = sum((w * m).item() for w, m in zip(row, means, strict=True)) + gate.squeeze.bias[h].item()
        value = (value - gate.norm.running_mean[h].item()) / math.sqrt(gate.norm.running_var[h].item() + gate.norm.eps)
        value = value * gate.norm.weight[h].item() + gate.norm.bias[h].item()
        hidden.append(value * min(max(value + 3, 0), 6) / 6)
    scores = last.weight[:, :, 0] @ torch.tensor(hidden, dtype=torch.float64) + last.bias
    return [1 / (1 + math.exp(-score)) for score in scores.tolist()]


@torch.no_grad()
def test_loops_give_the_same() -> None:
    gate = CoordinateAttention(4, hidden=3, bias=True).double().eval()
    nn.init.normal_(gate.norm.running_mean), nn.init.uniform_(gate.norm.running_var, 0.5, 2)
    nn.init.normal_(gate.norm.weight), nn.init.normal_(gate.norm.bias)
    x = torch.randn(2, 4, 3, 5, dtype=torch.float64)
    out = gate(x)
    for image in range(2):
        rows = [column(gate, x[image, :, i].sum(1) / 5, gate.of_rows) for i in range(3)]
        columns = [column(gate, x[image, :, :, j].sum(1) / 3, gate.of_columns) for j in range(5)]
        for c, i, j in ((c, i, j) for c in range(4) for i in range(3) for j in range(5)):
            torch.testing.assert_close(out[image, c, i, j], x[image, c, i, j] * rows[i][c] * columns[j][c])


def test_zero_weights_quarter_the_map_and_the_width_is_at_least_eight() -> None:
    gate, x = CoordinateAttention(4), torch.randn(2, 4, 3, 5)
    nn.init.zeros_(gate.of_rows.weight), nn.init.zeros_(gate.of_columns.weight)
    torch.testing.assert_close(gate(x), 0.25 * x)
    assert [CoordinateAttention(c).squeeze.out_channels for c in (4, 256, 512)] == [8, 8, 16]
