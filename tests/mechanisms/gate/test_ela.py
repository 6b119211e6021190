"""Efficient local attention against loops, its counts and its symmetries."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.gate import ELA


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def gates(gate: ELA, means: Tensor, which: int) -> Tensor:
    """(channels, length) -> the same, number by number."""
    convolution, norm, (channels, length) = gate.filters[which], gate.norms[which], means.shape
    weight, kernel = convolution.weight, convolution.kernel_size[0]
    width, filtered = weight.shape[1], torch.zeros_like(means)
    for c in range(channels):
        start = c // (channels // convolution.groups) * width
        for i in range(length):
            places = [(i + k - kernel // 2, k) for k in range(kernel) if 0 <= i + k - kernel // 2 < length]
            filtered[c, i] = sum(weight[c, d, k] * means[start + d, p] for d in range(width) for p, k in places)
    out, size = torch.zeros_like(means), channels // norm.num_groups
    for c in range(channels):
        group = filtered[c // size * size : (c // size + 1) * size]
        mean = group.sum() / group.numel()
        deviation = math.sqrt(((group - mean) ** 2).sum().item() / group.numel() + norm.eps)
        for i in range(length):
            value = ((filtered[c, i] - mean) / deviation * norm.weight[c] + norm.bias[c]).item()
            value = value / (1 + math.exp(-value)) if isinstance(gate.activation, nn.SiLU) else value
            out[c, i] = 1 / (1 + math.exp(-value))
    return out


@pytest.mark.parametrize(
    "arguments",
    [
        {"preset": "small"},
        {"preset": "base", "separate": True},
        {"preset": "large", "norm_groups": 2},
        {"norm_groups": 1, "separate": True, "activation": "silu"},
        {"preset": "tiny", "norm_groups": 8, "kernel": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(3, 4), (3, 3)], ids=str)
@torch.no_grad()
def test_loops_give_the_same(arguments: dict[str, Any], size: tuple[int, int]) -> None:
    gate, x = ELA(16, **arguments).double(), torch.randn(2, 16, *size, dtype=torch.float64)
    for norm in gate.norms:
        nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    out = gate(x)
    for image in range(2):
        rows = gates(gate, x[image].sum(2) / size[1], 0)
        columns = gates(gate, x[image].sum(1) / size[0], -1)
        torch.testing.assert_close(out[image], x[image] * rows[:, :, None] * columns[:, None, :])


@pytest.mark.parametrize(
    ("preset", "counts"),
    [
        ("tiny", (448, 1792, 3584, 105_728, 26_432)),
        ("base", (576, 2304, 4608, 135_936, 33_984)),
        ("small", (2688, 10_752, 21_504, 634_368, 158_592)),
        ("large", (3712, 14_848, 29_696, 876_032, 219_008)),
    ],
)
def test_parameters_alone_and_in_every_bottleneck_of_a_resnet50(preset: Any, counts: tuple[int, ...]) -> None:
    assert tuple(count(ELA(channels, preset)) for channels in (64, 256, 512)) == counts[:3]
    blocks = (3, 4, 6, 3)
    for expansion, expected in ((4, counts[3]), (1, counts[4])):
        widths = [64 * expansion * 2**stage for stage, number in enumerate(blocks) for _ in range(number)]
        assert sum(count(ELA(width, preset)) for width in widths) == expected
    assert count(ELA(64, preset, separate=True)) == 2 * counts[0]


def test_a_zero_filter_quarters_the_map() -> None:
    gate, x = ELA(32), torch.randn(2, 32, 5, 4)
    nn.init.zeros_(gate.filters[0].weight)
    torch.testing.assert_close(gate(x), 0.25 * x)


def test_only_shared_filters_commute_with_the_transpose() -> None:
    x = torch.randn(2, 32, 5, 7)
    shared, separate = ELA(32), ELA(32, separate=True)
    torch.testing.assert_close(shared(x.mT).mT, shared(x))
    assert not torch.allclose(separate(x.mT).mT, separate(x))


def test_gates_of_a_channel_have_rank_one() -> None:
    x = torch.rand(2, 32, 5, 7) + 1
    shares = ELA(32)(x) / x
    torch.testing.assert_close(shares[:, :, :1, :1] * shares[:, :, 1:, 1:], shares[:, :, :1, 1:] * shares[:, :, 1:, :1])


def test_worked_map() -> None:
    gate = ELA(1, norm_groups=1, kernel=3)
    gate.filters[0].weight.data = torch.tensor([[[0.0, 1.0, 0.0]]])
    x = torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]])
    expected = torch.tensor([[[[0.0723, 0.3932], [0.5898, 3.2067]]]])
    torch.testing.assert_close(gate(x), expected, rtol=0, atol=1e-4)


def test_constant_channels_are_quartered_where_each_is_normalised_alone() -> None:
    gate = ELA(4, norm_groups=4, kernel=3)
    gate.filters[0].weight.data = torch.tensor([[[0.0, 1.0, 0.0]]]).repeat(4, 1, 1)
    x = torch.randn(2, 4, 1, 1).expand(-1, -1, 5, 3)
    torch.testing.assert_close(gate(x), 0.25 * x)


def test_a_slot_fills_in_groups_that_divide_its_width() -> None:
    groups = {width: mereo.create_mechanism("ela", width).norms[0].num_groups for width in (8, 12, 16, 24, 48, 64)}
    assert groups == {8: 8, 12: 12, 16: 16, 24: 12, 48: 16, 64: 16}
    assert mereo.create_mechanism("ela", 64, preset="tiny").norms[0].num_groups == 32


def test_groups_that_do_not_divide_the_channels_are_refused() -> None:
    for arguments, named in (
        ({"channels": 24}, "norm_groups is 16"),
        ({"channels": 16, "preset": "tiny"}, "norm_groups is 32"),
        ({"channels": 20, "preset": "small", "norm_groups": 4}, "channels is 20"),
        ({"channels": 32, "kernel": 4}, "kernel is 4"),
        ({"channels": 32, "conv_groups": 5}, "conv_groups is 5"),
    ):
        with pytest.raises(UsageError, match=named):
            ELA(**arguments)  # type: ignore[arg-type]
