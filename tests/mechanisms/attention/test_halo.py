"""Halo attention against loops over pairs of cells, the numbers of a uniform softmax, and what it contains."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import mereo
from mereo.core.topology import Halo
from mereo.errors import UsageError
from mereo.mechanisms.attention.local import HaloAttention


def slow(layer: HaloAttention, maps: Tensor) -> Tensor:
    """Every pair of a query and a key by itself; padded keys are cells of zeros."""
    block, halo, step, win = layer.block, layer.halo, layer.step, layer.win
    d_k, d_v = layer.key_dim, layer.value_dim
    batch, _, rows, columns = maps.shape
    q = torch.einsum("oc,bcyx->boyx", layer.query.weight[:, :, 0, 0], maps).unflatten(1, (-1, d_k))
    kv = torch.einsum("oc,bcyx->boyx", layer.key_value.weight[:, :, 0, 0], maps).unflatten(1, (-1, d_k + d_v))
    out = maps.new_zeros(batch, layer.num_heads, d_v, -(-rows // step), -(-columns // step))
    apart = step if layer.true_offsets else 1
    for y in range(0, rows, step):
        for x in range(0, columns, step):
            a, e = y % block // step, x % block // step
            top, left = y - y % block - halo, x - x % block - halo
            for b in range(batch):
                for h in range(layer.num_heads):
                    query, logits, values = q[b, h, :, y, x], [], []
                    for i in range(win):
                        for j in range(win):
                            inside = 0 <= top + i < rows and 0 <= left + j < columns
                            if not inside and layer.mask_padding:
                                continue
                            key = kv[b, h, :, top + i, left + j] if inside else maps.new_zeros(d_k + d_v)
                            place = query @ layer.rows[i - apart * a + win - 1]
                            place = place + query @ layer.columns[j - apart * e + win - 1]
                            content = query @ key[:d_k]
                            scale = d_k**-0.5
                            logits.append(content * scale + place * (scale if layer.scale_positions else 1))
                            values.append(key[d_k:])
                    shares = torch.stack(logits).softmax(0)
                    out[b, h, :, y // step, x // step] = shares @ torch.stack(values)
    out = out.flatten(1, 2)
    return torch.nn.functional.avg_pool2d(out, 2, ceil_mode=True) if step < layer.stride else out


@pytest.mark.parametrize(
    ("size", "changes"),
    [
        ((4, 6), {}),
        ((4, 4), {"stride": 2}),
        ((4, 4), {"stride": 2, "true_offsets": True}),
        ((4, 4), {"scale_positions": True, "mask_padding": True}),
        ((3, 5), {"mask_padding": True}),
        ((5, 3), {"stride": 2}),
        ((3, 6), {"block": 3, "stride": 2}),
        ((4, 2), {"halo": 0}),
        ((4, 4), {"halo": 3}),
    ],
)
def test_equals_loops_over_pairs(size: tuple[int, int], changes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer = HaloAttention(3, 2, **{"key_dim": 3, "value_dim": 2, "block": 2, "halo": 1, **changes}).double()
    maps = torch.randn(2, 3, *size, dtype=torch.float64)
    torch.testing.assert_close(layer(maps), slow(layer, maps), rtol=0, atol=1e-12)
    with mereo.record(layer):  # the plain path
        torch.testing.assert_close(layer(maps), slow(layer, maps), rtol=0, atol=1e-12)
    single = layer.float()(maps.float()).double()
    torch.testing.assert_close(single, slow(layer.double(), maps), rtol=0, atol=1e-6)


def test_gradients_equal_those_of_the_loops() -> None:
    torch.manual_seed(0)
    layer = HaloAttention(3, 1, key_dim=2, value_dim=2, block=2, halo=1, stride=2).double()
    maps = torch.randn(1, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    wanted = [maps, *layer.parameters()]
    weights = torch.randn(1, 2, 2, 2, dtype=torch.float64)
    ours = torch.autograd.grad((layer(maps) * weights).sum(), wanted)
    for mine, theirs in zip(ours, torch.autograd.grad((slow(layer, maps) * weights).sum(), wanted), strict=True):
        torch.testing.assert_close(mine, theirs)


def uniform(**changes: Any) -> HaloAttention:
    """Queries of zero, so that every key has the same share, and values of one."""
    layer = HaloAttention(1, 1, key_dim=1, value_dim=1, block=2, halo=1, **changes)
    with torch.no_grad():
        layer.query.weight.zero_()
        layer.key_value.weight.fill_(1)
    return layer


def test_padding_takes_its_share_of_a_uniform_softmax() -> None:
    torch.testing.assert_close(uniform()(torch.ones(1, 1, 4, 4)), torch.full((1, 1, 4, 4), 0.5625))
    out = uniform()(torch.ones(1, 1, 6, 6))[0, 0, ::2, ::2]
    expected = torch.tensor([[0.5625, 0.75, 0.5625], [0.75, 1, 0.75], [0.5625, 0.75, 0.5625]])
    torch.testing.assert_close(out, expected)
    masked = uniform(mask_padding=True)(torch.ones(1, 1, 6, 6))
    torch.testing.assert_close(masked, torch.ones(1, 1, 6, 6))


def test_one_block_without_a_halo_is_global_attention() -> None:
    torch.manual_seed(0)
    layer = HaloAttention(6, 2, key_dim=3, value_dim=3, block=4, halo=0).double()
    maps = torch.randn(2, 6, 4, 4, dtype=torch.float64)
    q = layer.query(maps).unflatten(1, (2, 3)).flatten(3).mT
    k, v = layer.key_value(maps).unflatten(1, (2, 6)).flatten(3).mT.chunk(2, -1)
    y, x = torch.arange(16) // 4, torch.arange(16) % 4
    rows, columns = layer.rows[y - y.unsqueeze(1) + 3], layer.columns[x - x.unsqueeze(1) + 3]
    logits = q @ k.mT / math.sqrt(3) + torch.einsum("bhqd,qkd->bhqk", q, rows + columns)
    expected = (logits.softmax(-1) @ v).mT.reshape(2, 6, 4, 4)
    torch.testing.assert_close(layer(maps), expected)


def test_without_a_halo_blocks_do_not_see_each_other() -> None:
    torch.manual_seed(0)
    layer = HaloAttention(4, 2, block=2, halo=0)
    maps = torch.randn(1, 4, 4, 6)
    windows = maps.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).reshape(-1, 4, 2, 2)
    apart = layer(windows).unflatten(0, (1, 2, 3)).permute(0, 3, 1, 4, 2, 5).reshape(1, 4, 4, 6)
    torch.testing.assert_close(layer(maps), apart)


def test_equivariant_to_shifts_by_whole_blocks_only() -> None:
    torch.manual_seed(0)
    layer = HaloAttention(4, 1, block=4, halo=2)
    maps = 3 * torch.randn(1, 4, 24, 24)
    out = layer(maps)
    inner = (..., slice(4, 20), slice(8, 20))
    torch.testing.assert_close(layer(maps.roll(4, 3))[inner], out.roll(4, 3)[inner])
    assert (layer(maps.roll(1, 3))[inner] - out.roll(1, 3)[inner]).abs().max() > 0.1


def test_the_first_rows_of_the_tables_are_out_of_reach() -> None:
    torch.manual_seed(0)
    layer = HaloAttention(4, 1, block=4, halo=1)
    layer(torch.randn(1, 4, 8, 8)).square().sum().backward()
    for table in (layer.rows, layer.columns):
        assert table.grad is not None and len(table) == 11
        used = table.grad.abs().sum(1) > 0
        assert used.tolist() == [False] * 2 + [True] * 9


def test_couplings_are_placed_on_the_image() -> None:
    torch.manual_seed(0)
    layer = HaloAttention(4, 2, block=2, halo=1, stride=2, mask_padding=True)
    with mereo.record(layer) as trace:
        out = layer(maps := torch.randn(2, 4, 5, 4))
    couplings = trace["coupling"]
    assert couplings.shape == (2, 2, 3 * 2, 5 * 4)
    torch.testing.assert_close(couplings.sum(-1), torch.ones(2, 2, 6))
    v = layer.key_value(maps).unflatten(1, (2, 4)).flatten(3)[:, :, 2:]
    torch.testing.assert_close((couplings @ v.mT).mT.reshape(2, 4, 3, 2), out)
    # The first query sees its block of four cells and five around it.
    assert couplings[0, 0, 0].nonzero().flatten().tolist() == [0, 1, 2, 4, 5, 6, 8, 9, 10]
    assert Halo((5, 4), 2, 1, 2).tiles() is Halo((5, 4), 2, 1, 2).tiles()
    assert Halo((5, 4), 2, 1, 2).tiles().senders[0].tolist()[:6] == [-1, -1, -1, -1, -1, 0]


def test_a_cell_whose_couplings_are_removed_changes_nothing() -> None:
    torch.manual_seed(0)
    layer = HaloAttention(4, 2, block=2, halo=1)
    # Without the scores, which the softmax compares, cell 5 acts through its value only.
    with torch.no_grad():
        layer.query.weight.zero_()
    maps = torch.randn(1, 4, 4, 4)
    other = maps.clone()
    other[..., 1, 1] += 1
    seen = torch.ones(16)
    seen[5] = 0
    with mereo.intervene(layer, {"coupling": lambda couplings: couplings * seen}):
        torch.testing.assert_close(layer(maps), layer(other))
    assert not torch.allclose(layer(maps), layer(other))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stride": 3}, "stride is 3"),
        ({"halo": -1}, "halo is -1"),
        ({"block": 0}, "block"),
        ({"num_heads": 5}, "channels is 4 and num_heads 5"),
    ],
)
def test_wrong_arguments(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        HaloAttention(**{"channels": 4, "num_heads": 2, **arguments})
