"""Bi-level routing attention against loops over regions and cells, full attention, and routes worked by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.attention.sparse import BiLevelRoutingAttention


def layer_of(dim: int = 4, num_heads: int = 2, **changes: Any) -> BiLevelRoutingAttention:
    torch.manual_seed(0)
    layer = BiLevelRoutingAttention(dim, num_heads, **{"regions": 2, "top_k": 2, **changes}).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return layer


def random_maps(rows: int = 4, columns: int = 6, dim: int = 4) -> Tensor:
    return torch.randn(2, rows, columns, dim, dtype=torch.float64)


def slow(layer: BiLevelRoutingAttention, maps: Tensor) -> Tensor:
    """The equations with a loop over images, regions, heads and cells."""
    batch, rows, columns, dim = maps.shape
    s = layer.regions
    down, across = -(-rows // s), -(-columns // s)
    if layer.pad == "legacy":
        wide = maps.new_zeros(batch, s * down, s * across, dim)
        wide[:, :rows, :columns] = maps
        maps = wide
    qkv = layer.qkv(maps)
    height, width = qkv.shape[1:3]
    enhanced = layer.local(qkv[..., 2 * dim :].permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    out = torch.zeros_like(qkv[..., :dim])
    members = [
        [(y, x) for y in range(j * down, (j + 1) * down) for x in range(i * across, (i + 1) * across)]
        for j in range(s)
        for i in range(s)
    ]

    def inside(cell: tuple[int, int]) -> bool:
        return cell[0] < height and cell[1] < width

    for b in range(batch):
        means = []
        for region in members:
            real = [qkv[b, y, x] for y, x in region if inside((y, x))]
            means.append(torch.stack(real).mean(0) if real else None)
        for r, region in enumerate(members):
            if means[r] is None:
                continue
            scores = torch.stack(
                [
                    torch.tensor(-torch.inf).double() if mean is None else means[r][:dim] @ mean[dim : 2 * dim]
                    for mean in means
                ]
            ).detach()
            best, routed = scores.topk(layer.top_k)
            shares = (best * layer.scale).softmax(0) if layer.soft else torch.ones(layer.top_k).double()
            for y, x in region:
                if not inside((y, x)):
                    continue
                for head in range(layer.num_heads):
                    size = dim // layer.num_heads
                    part = [slice(i * dim + head * size, i * dim + (head + 1) * size) for i in range(3)]
                    logits, values = [], []
                    for share, other in zip(shares, routed.tolist(), strict=True):
                        for cell in members[other]:
                            if not inside(cell) and layer.pad == "masked":
                                continue
                            kv = qkv[b, cell[0], cell[1]] if inside(cell) else qkv.new_zeros(3 * dim)
                            logits.append(layer.scale * qkv[b, y, x, part[0]] @ (share * kv[part[1]]))
                            values.append(share * kv[part[2]])
                    out[b, y, x, head * size : (head + 1) * size] = torch.stack(logits).softmax(0) @ torch.stack(values)
    return layer.proj(out + enhanced)[:, :rows, :columns]


CASES = [
    ((4, 6), {}),
    ((4, 6), {"method": "dense"}),
    ((4, 6), {"soft": True}),
    ((4, 6), {"top_k": 4, "scale": 0.7}),
    ((4, 6), {"top_k": 1}),
    *(
        ((5, 3), {"pad": pad, "method": method})
        for pad in ("masked", "legacy", "zeros")
        for method in ("gather", "dense")
    ),
    ((1, 3), {"method": "gather"}),
    ((1, 3), {"method": "dense", "top_k": 3}),
    ((5, 3), {"soft": True, "top_k": 3}),
]


@pytest.mark.parametrize(("size", "changes"), CASES)
def test_equals_the_loops(size: tuple[int, int], changes: dict[str, Any]) -> None:
    layer, maps = layer_of(**changes), random_maps(*size)
    expected = slow(layer, maps)
    torch.testing.assert_close(layer(maps), expected)
    with mereo.record(layer):  # the plain path
        torch.testing.assert_close(layer(maps), expected)


@pytest.mark.parametrize(("size", "changes"), [CASES[0], CASES[1], CASES[2], CASES[5], CASES[6]])
def test_gradients_equal_those_of_the_loops(size: tuple[int, int], changes: dict[str, Any]) -> None:
    layer, maps = layer_of(**changes), random_maps(*size).requires_grad_()
    weights = torch.randn_like(maps)
    wanted = [maps, *layer.parameters()]
    ours = torch.autograd.grad((layer(maps) * weights).sum(), wanted)
    for mine, other in zip(ours, torch.autograd.grad((slow(layer, maps) * weights).sum(), wanted), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("changes", [{"top_k": 4}, {"regions": 1, "top_k": 1}, {"top_k": 4, "method": "gather"}])
def test_all_regions_are_full_attention(changes: dict[str, int]) -> None:
    layer, maps = layer_of(**changes), random_maps()
    q, k, v = layer.qkv(maps).flatten(1, 2).unflatten(-1, (3, 2, 2)).permute(2, 0, 3, 1, 4)
    mixed = ((q @ k.mT * 4**-0.5).softmax(-1) @ v).transpose(1, 2).reshape(maps.shape)
    local = layer.local(layer.qkv(maps)[..., 8:].permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    torch.testing.assert_close(layer(maps), layer.proj(mixed + local), rtol=0, atol=1e-7)


@pytest.mark.parametrize("method", ["gather", "dense"])
def test_every_cell_attends_to_the_cells_of_k_regions(method: str) -> None:
    layer, maps = layer_of(method=method), random_maps()
    with mereo.record(layer) as trace:
        _, routes = layer(maps, return_routes=True)
    couplings = trace["coupling"]
    assert couplings.shape == (2, 2, 24, 24) and routes.shape == (2, 4, 2)
    torch.testing.assert_close(couplings.sum(-1), torch.ones(2, 2, 24).double())
    region = (torch.arange(24) // 6 // 2) * 2 + torch.arange(24) % 6 // 3
    for image in range(2):
        for cell in range(24):
            read = region[couplings[image, 0, cell].nonzero().flatten()]
            assert len(read) == 12 and set(read.tolist()) == set(routes[image, region[cell]].tolist())


def test_routes_of_four_regions_by_hand() -> None:
    layer = BiLevelRoutingAttention(2, 1, regions=2, top_k=2)
    means = torch.tensor([[1.0, 0], [0, 1], [1, 1], [-1, 0]])
    cells = torch.stack((means + 0.5, means - 0.5), 1).unsqueeze(0)
    routes, shares = layer.route(cells, cells)
    sets = [set(row) for row in routes[0].tolist()]
    assert sets[0] == {0, 2} and sets[1] == {1, 2} and sets[3] == {3, 1} and 2 in sets[2] and sets[2] != {2, 3}
    torch.testing.assert_close(shares[0, 3], (torch.tensor([1.0, 0]) * 2**-0.5).softmax(0))


def test_the_order_of_cells_inside_regions_does_not_matter() -> None:
    layer, maps = layer_of(), random_maps(4, 4)
    with torch.no_grad():
        layer.local.weight.zero_()

    def swapped(x: Tensor) -> Tensor:
        """Both rows of each region exchanged."""
        return x.unflatten(1, (2, 2)).flip(2).flatten(1, 2)

    torch.testing.assert_close(layer(swapped(maps)), swapped(layer(maps)))
    assert not torch.allclose(layer(maps.flip(1)), swapped(layer(maps)))


@pytest.mark.parametrize("method", ["gather", "dense"])
def test_a_region_that_is_not_routed_to_changes_nothing(method: str) -> None:
    layer, maps = layer_of(top_k=1, method=method), random_maps(4, 4)
    with torch.no_grad():
        layer.local.weight.zero_()
    out, routes = layer(maps, return_routes=True)
    unread = next(r for r in range(4) if r not in routes[0])
    y, x = 2 * (unread // 2), 2 * (unread % 2)
    other = maps.clone()
    other[0, y, x] += 0.01
    changed, same = layer(other, return_routes=True)
    assert torch.equal(routes, same)
    kept = torch.ones(4, 4, dtype=torch.bool)
    kept[y : y + 2, x : x + 2] = False
    assert torch.equal(out[0][kept], changed[0][kept])
    assert not torch.equal(out[0], changed[0])


def test_no_gradient_passes_through_the_routing() -> None:
    layer = layer_of()
    cells = torch.randn(1, 4, 3, 4, dtype=torch.float64, requires_grad=True)
    routes, shares = layer.route(cells, cells)
    assert not routes.requires_grad and not shares.requires_grad
    layer = layer_of(soft=True, scale=0.0)
    layer(random_maps()).sum().backward()
    assert layer.qkv.weight.grad is not None
    assert not layer.qkv.weight.grad[:8].any(), "without scores, queries and keys have no gradient"
    assert layer.qkv.weight.grad[8:].any()


def test_soft_routing_with_equal_scores_divides_by_k() -> None:
    layer, soft = layer_of(top_k=4, method="gather"), layer_of(top_k=4, soft=True)
    maps = random_maps(4, 4)
    with torch.no_grad():
        for each in (layer, soft):
            each.qkv.weight[:4].zero_()  # queries are zero, and so are the scores
            each.qkv.bias[:4].zero_()
            each.local.weight.zero_()
            each.local.bias.zero_()
            each.proj.bias.zero_()
    torch.testing.assert_close(soft(maps), layer(maps) / 4)
    cells = torch.zeros(1, 4, 2, 4)
    assert torch.equal(soft.route(cells, cells)[1], torch.full((1, 4, 4), 0.25))


def test_auto_uses_the_dense_form_for_a_large_share() -> None:
    assert BiLevelRoutingAttention(8, 2, regions=7, top_k=16)._dense()
    assert not BiLevelRoutingAttention(8, 2, regions=7, top_k=4)._dense()
    assert not BiLevelRoutingAttention(8, 2, regions=7, top_k=16, soft=True)._dense()


def test_a_blank_map_and_one_cell_give_finite_outputs() -> None:
    for maps in (torch.zeros(1, 4, 4, 4), torch.randn(1, 1, 1, 4)):
        for pad in ("masked", "legacy", "zeros"):
            assert BiLevelRoutingAttention(4, 2, regions=3, top_k=2, pad=pad)(maps).isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"top_k": 5}, "top_k is 5 with 2 x 2 regions; give at most 4"),
        ({"num_heads": 3}, "dim is 4 and num_heads 3"),
        ({"pad": "reflect"}, "reflect"),
        ({"method": "flash"}, "flash"),
        ({"soft": True, "method": "dense"}, "soft=True"),
        ({"regions": 0}, "regions"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BiLevelRoutingAttention(**{"dim": 4, "num_heads": 2, "regions": 2, "top_k": 2, **arguments})
