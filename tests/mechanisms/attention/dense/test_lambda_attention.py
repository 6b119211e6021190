"""Lambda attention against loops over cells, and what it records."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.attention.dense import LambdaAttention


def slow(layer: LambdaAttention, maps: Tensor) -> Tensor:
    """In eval mode: a matrix for each cell, from all cells and from those around it."""
    batch, _, rows, columns = maps.shape
    sizes = (layer.num_heads * layer.key_dim, layer.key_dim, layer.value_dim)
    q, k, v = torch.einsum("oc,bcyx->boyx", layer.qkv.weight[:, :, 0, 0], maps).split(sizes, 1)
    q, v = layer.query_norm(q), layer.value_norm(v)
    out = torch.zeros(batch, layer.num_heads, layer.value_dim, rows, columns, dtype=maps.dtype)
    cells, reach = [(y, x) for y in range(rows) for x in range(columns)], layer.scope // 2
    for b in range(batch):
        sums = sum(k[b, :, y, x].exp() for y, x in cells)
        shared = sum(torch.outer(k[b, :, y, x].exp() / sums, v[b, :, y, x]) for y, x in cells)
        for y, x in cells:
            matrix = shared + layer.positions.bias[:, None]
            for i, j in cells:
                if abs(i - y) <= reach and abs(j - x) <= reach:
                    place = layer.positions.weight[:, 0, i - y + reach, j - x + reach]
                    matrix = matrix + torch.outer(place, v[b, :, i, j])
            for h in range(layer.num_heads):
                query = q[b, h * layer.key_dim : (h + 1) * layer.key_dim, y, x]
                out[b, h, :, y, x] = matrix.T @ query
    out = out.flatten(1, 2)
    return F.avg_pool2d(out, 2, ceil_mode=True) if layer.stride == 2 else out


@pytest.mark.parametrize("stride", [1, 2])
def test_equals_loops_over_cells(stride: int) -> None:
    torch.manual_seed(0)
    layer = LambdaAttention(4, 2, key_dim=3, scope=3, stride=stride).double().eval()
    for norm in (layer.query_norm, layer.value_norm):
        norm.running_mean.normal_(std=0.3)
        norm.running_var.uniform_(0.5, 2)
    maps = torch.randn(2, 4, 3, 5, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(layer(maps), slow(layer, maps))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
def test_gradients_are_those_of_differences(batch: int, training: bool) -> None:
    torch.manual_seed(0)
    layer = LambdaAttention(4, 2, key_dim=2, scope=3).double().train(training)
    for norm in (layer.query_norm, layer.value_norm):
        norm.momentum = 0.0
    maps = torch.randn(batch, 4, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (maps,))


def test_without_positions_the_order_of_cells_does_not_matter() -> None:
    layer, maps = LambdaAttention(4, 2, key_dim=3, scope=3).eval(), torch.randn(2, 4, 3, 4)
    order = torch.randperm(12)
    moved = maps.flatten(2)[:, :, order].view_as(maps)
    assert not torch.allclose(layer(moved).flatten(2), layer(maps).flatten(2)[:, :, order], atol=1e-4)
    torch.nn.init.zeros_(layer.positions.weight)
    torch.testing.assert_close(layer(moved).flatten(2), layer(maps).flatten(2)[:, :, order])


def test_couplings_are_shares_of_cells() -> None:
    with mereo.record(layer := LambdaAttention(4, 2, key_dim=3, scope=3).eval()) as trace:
        layer(torch.randn(2, 4, 3, 4))
    assert trace["coupling"].shape == (2, 1, 3, 12)
    torch.testing.assert_close(trace["coupling"].sum(-1), torch.ones(2, 1, 3))
    (call,) = trace.calls("coupling")
    assert call.senders is None


def test_it_starts_with_the_deviations_that_its_sizes_ask_for() -> None:
    torch.manual_seed(0)
    layer = LambdaAttention(64, 4, key_dim=16, scope=13)
    assert math.isclose(layer.qkv.weight.std().item(), 64**-0.5, rel_tol=0.1)
    assert math.isclose(layer.positions.weight.std().item(), 16**-0.5, rel_tol=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 3}, "channels is 4 and num_heads 3"),
        ({"stride": 3}, "stride is 3"),
        ({"scope": 4}, "scope is 4"),
        ({"scope": 2**31 - 1}, "at most 1023"),
        ({"key_dim": 0}, "key_dim is 0"),
    ],
)
def test_wrong_arguments(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        LambdaAttention(4, **{"num_heads": 2, **changes})
