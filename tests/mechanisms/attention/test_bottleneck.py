"""Bottleneck attention against loops over pairs of cells, and halo attention with one block."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.attention.dense import BottleneckAttention
from mereo.mechanisms.attention.local import HaloAttention


def slow(layer: BottleneckAttention, maps: Tensor) -> Tensor:
    batch, channels, rows, columns = maps.shape
    dim = channels // layer.num_heads
    qkv = torch.einsum("oc,bcyx->boyx", layer.qkv.weight[:, :, 0, 0], maps)
    q, k, v = (x.unflatten(1, (-1, dim)) for x in qkv.chunk(3, 1))
    out = torch.zeros_like(q)
    for b in range(batch):
        for h in range(layer.num_heads):
            for y in range(rows):
                for x in range(columns):
                    query = q[b, h, :, y, x]
                    logits = maps.new_zeros(rows, columns)
                    for i in range(rows):
                        for j in range(columns):
                            place = layer.rows[i - y + rows - 1] + layer.columns[j - x + columns - 1]
                            logits[i, j] = query @ k[b, h, :, i, j] * dim**-0.5 + query @ place
                    shares = logits.flatten().softmax(0).view(rows, columns)
                    out[b, h, :, y, x] = (shares * v[b, h]).sum((1, 2))
    out = out.flatten(1, 2)
    return F.avg_pool2d(out, 2, ceil_mode=True) if layer.stride == 2 else out


@pytest.mark.parametrize("stride", [1, 2])
def test_equals_loops_over_pairs(stride: int) -> None:
    torch.manual_seed(0)
    layer = BottleneckAttention(4, 2, size=(2, 4), stride=stride).double()
    maps = torch.randn(2, 4, 2, 4, dtype=torch.float64)
    torch.testing.assert_close(layer(maps), slow(layer, maps))
    with mereo.record(layer) as trace:
        torch.testing.assert_close(layer(maps), slow(layer, maps))
    assert trace["coupling"].shape == (2, 2, 8, 8)


def test_is_halo_attention_with_one_block() -> None:
    torch.manual_seed(0)
    layer, halo = BottleneckAttention(6, 2, size=(4, 4)), HaloAttention(6, 2, block=4, halo=0)
    q, k, v = layer.qkv.weight.chunk(3)
    kv = torch.cat((k.unflatten(0, (2, 3)), v.unflatten(0, (2, 3))), 1).flatten(0, 1)
    tables = {"rows": layer.rows, "columns": layer.columns}
    halo.load_state_dict({"query.weight": q, "key_value.weight": kv, **tables})
    maps = torch.randn(2, 6, 4, 4)
    torch.testing.assert_close(layer(maps), halo(maps))


def test_tables_are_interpolated_for_maps_of_another_size() -> None:
    torch.manual_seed(0)
    layer, larger = BottleneckAttention(4, 2, size=(2, 2)), BottleneckAttention(4, 2, size=(3, 3))
    ramp = torch.arange(-1.0, 2).unsqueeze(1)  # scores that are linear in the offset, as a share of the largest
    with torch.no_grad():
        for small, large in ((layer.rows, larger.rows), (layer.columns, larger.columns)):
            small.copy_(ramp.expand(-1, 2))
            large.copy_((torch.arange(-2.0, 3) / 2).unsqueeze(1).expand(-1, 2))
    larger.qkv.load_state_dict(layer.qkv.state_dict())
    maps = torch.randn(1, 4, 3, 3)
    torch.testing.assert_close(layer(maps), larger(maps))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"num_heads": 3}, "channels is 4 and num_heads 3"), ({"stride": 3}, "stride is 3"), ({"size": (0, 2)}, "rows")],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BottleneckAttention(**{"channels": 4, "num_heads": 2, "size": (2, 2), **arguments})
