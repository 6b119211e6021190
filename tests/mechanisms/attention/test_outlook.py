"""Outlook attention against loops over windows, places and cells, and its worked numbers."""

import pytest
import torch
from torch import Tensor

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.attention.local.outlook import OutlookAttention


def by_loops(attention: OutlookAttention, maps: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and couplings (heads, cells, cells) of one map, window by window."""
    rows, columns, dim = maps.shape
    kernel, stride, heads = attention.kernel, attention.stride, attention.num_heads
    size = dim // heads
    out, couplings = torch.zeros_like(maps), maps.new_zeros(heads, rows * columns, rows * columns)
    values = maps @ attention.value.weight.T
    for i in range(-(-rows // stride)):
        for j in range(-(-columns // stride)):
            mean = maps[i * stride : (i + 1) * stride, j * stride : (j + 1) * stride].mean((0, 1))
            scores = attention.weights.weight @ mean + attention.weights.bias
            shares = (scores.view(heads, kernel**2, kernel**2) / size**0.5).softmax(-1)
            top, left = i * stride - attention.padding, j * stride - attention.padding
            cells = [(top + a, left + b) for a in range(kernel) for b in range(kernel)]
            for p, (y, x) in enumerate(cells):
                for m, (z, u) in enumerate(cells):
                    if 0 <= y < rows and 0 <= x < columns and 0 <= z < rows and 0 <= u < columns:
                        for head in range(heads):
                            channels = slice(head * size, (head + 1) * size)
                            out[y, x, channels] += shares[head, p, m] * values[z, u, channels]
                            couplings[head, y * columns + x, z * columns + u] += shares[head, p, m]
    return out @ attention.proj.weight.T + attention.proj.bias, couplings


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize(
    ("kernel", "padding", "stride", "shape"),
    [(3, 1, 2, (5, 4)), (3, 1, 1, (3, 2)), (2, 1, 2, (4, 3)), (1, 0, 2, (3, 4)), (4, 2, 3, (5, 2)), (2, 0, 3, (4, 5))],
)
def test_outputs_and_couplings_of_each_cell(
    kernel: int, padding: int, stride: int, shape: tuple[int, int], gradients: bool
) -> None:
    attention = OutlookAttention(4, 2, kernel=kernel, padding=padding, stride=stride).double()
    maps = torch.randn(1, *shape, 4, dtype=torch.float64)
    with torch.set_grad_enabled(gradients):
        expected, couplings = by_loops(attention, maps[0])
        torch.testing.assert_close(attention(maps)[0], expected)
        with mereo.record(attention) as trace:
            torch.testing.assert_close(attention(maps)[0], expected)
    torch.testing.assert_close(trace["coupling"][0], couplings)


def uniform(**changes: int) -> OutlookAttention:
    """Equal couplings, and values and output as they come."""
    attention = OutlookAttention(2, 1, **changes)
    for layer in (attention.weights, attention.proj, attention.value):
        for parameter in layer.parameters():
            torch.nn.init.zeros_(parameter)
    torch.nn.init.eye_(attention.value.weight)
    torch.nn.init.eye_(attention.proj.weight)
    return attention


@pytest.mark.parametrize(
    ("stride", "side", "rows"),
    [
        (1, 5, {0: (2.777778, 4.444444, 5, 4.444444, 2.777778), 2: (5, 8, 9, 8, 5)}),
        (
            2,
            6,
            {
                0: (0.444444, 1.111111, 0.666667, 1.333333, 0.666667, 0.666667),
                3: (1.333333, 3.333333, 2, 4, 2, 2),
                4: (0.666667, 1.666667, 1, 2, 1, 1),
            },
        ),
        (2, 5, {0: (0.444444, 1.111111, 0.666667, 1.111111, 0.444444)}),
    ],
)
def test_worked_numbers(stride: int, side: int, rows: dict[int, tuple[float, ...]]) -> None:
    out = uniform(stride=stride)(torch.ones(1, side, side, 2))[0, :, :, 1]
    for row, expected in rows.items():
        torch.testing.assert_close(out[row], torch.tensor(expected, dtype=torch.float32), atol=1e-6, rtol=0)
    if side == 5:
        assert out[2, 2].item() == pytest.approx(9 if stride == 1 else 1)


def test_a_window_of_one_cell_is_two_linear_layers() -> None:
    attention, maps = OutlookAttention(4, 2, kernel=1, padding=0, stride=1), torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(attention(maps), attention.proj(attention.value(maps)))


def test_the_output_is_linear_in_the_values() -> None:
    attention = OutlookAttention(4, 2).double()
    attention.proj.bias.data.zero_()
    maps, weight = torch.randn(1, 4, 4, 4, dtype=torch.float64), attention.value.weight.data.clone()
    expected = attention(maps)
    attention.value.weight.data = 3 * weight
    torch.testing.assert_close(attention(maps), 3 * expected)


def test_both_ways_to_add_windows_have_the_same_gradients() -> None:
    attention = OutlookAttention(4, 2).double()
    maps = torch.randn(1, 3, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(attention, (maps,))


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="dim is 6 and num_heads 4"):
        OutlookAttention(6, 4)
    with pytest.raises(UsageError, match="padding is 3"):
        OutlookAttention(6, 2, padding=3)
    with pytest.raises(UsageError, match="stride is 0"):
        OutlookAttention(6, 2, stride=0)
