"""Bridging attention against loops over its equations, the full location table, and worked numbers."""

import math
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.core import intervene, record
from mereo.errors import UsageError
from mereo.mechanisms.attention import BridgingAttention, LocationTable


def randomised(*arguments: int, **options: object) -> BridgingAttention:
    module = BridgingAttention(*arguments, **options).double()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.3)
    return module


def inputs(types: int, dim: int, keys: int = 4, cells: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    def drawn(*shape: int) -> Tensor:
        return torch.randn(2, *shape, dtype=torch.float64)

    return drawn(types, keys, dim), drawn(cells, dim), 30 * drawn(types, keys, 2), 30 * drawn(cells, 2)


def table_by_loops(table: LocationTable, x: float, y: float) -> Tensor:
    """The learned map of the embedding of one whole offset."""
    rates = [1000 ** (4 * m / 256) for m in range(64)]
    code = [f(place / rate) for place in (x, y) for f in (math.sin, math.cos) for rate in rates]
    return table.weight @ torch.tensor(code, dtype=torch.float64) + table.bias


def test_parameters_are_those_of_the_released_modules() -> None:
    def count(*modules: BridgingAttention) -> int:
        return sum(p.numel() for p in {p for module in modules for p in module.parameters()})

    one, two = BridgingAttention(256), BridgingAttention(256, key_types=2)
    assert (count(one), count(two), count(one, two)) == (265_224, 528_392, 793_616)
    assert sum(p.numel() for p in one.attention.parameters()) == 263_168
    # ATSS shares one table between the branches.
    assert count(one, BridgingAttention(256, key_types=2, location=one.location)) == 793_616 - 2_056


@pytest.mark.parametrize("log_scale", [False, True])
def test_loops_over_the_equations_give_the_same(log_scale: bool) -> None:
    module, (keys, queries, key_places, places) = randomised(6, 2, 2, cells=9, log_scale=log_scale), inputs(2, 6)
    unit = torch.tensor([4.0, 4.0, 8.0, 8.0, 16.0], dtype=torch.float64)
    key_places = (key_places / 16).round() * 16
    places = (places / 16).round() * 16  # so that offsets are whole
    got, layers = module(keys, queries, key_places, places, unit), cast("Any", module.attention)
    for b in range(2):
        for i in range(5):
            total = queries[b, i]
            for t, layer in enumerate(layers):
                heads = []
                for h in range(2):
                    part, scores = slice(3 * h, 3 * h + 3), []
                    for j in range(4):
                        x, y = ((key_places[b, t, j] - places[b, i]) / unit[i]).clamp(-4, 4).tolist()
                        where = table_by_loops(module.location, x, y)[h]
                        fit = layer.query(queries[b, i])[part] @ layer.key(keys[b, t, j])[part] / 3**0.5
                        scores.append(fit + (where.clamp(min=1e-6).log() if log_scale else where))
                    shares = torch.stack(scores).softmax(0)
                    heads.append(sum(shares[j] * layer.value(keys[b, t, j])[part] for j in range(4)))
                total = total + layer.proj(torch.cat(heads))
            torch.testing.assert_close(got[b, i], total.relu(), rtol=1e-6, atol=1e-6)


def test_one_key_reaches_every_query_wherever_it_is_and_no_output_is_the_relu() -> None:
    module, (keys, queries, key_places, places) = randomised(6, 2, cells=9), inputs(1, 6, keys=1)
    layer: Any = module.attention[0]
    expected = (queries + layer.proj(layer.value(keys[:, 0]))).relu()
    torch.testing.assert_close(module(keys, queries, key_places, places), expected)
    with torch.no_grad():
        layer.proj.weight.zero_()
        layer.proj.bias.zero_()
    torch.testing.assert_close(module(keys, queries, key_places, places), queries.relu())


def test_the_order_of_keys_and_the_origin_change_nothing() -> None:
    module, (keys, queries, key_places, places) = randomised(6, 2, 2, cells=33), inputs(2, 6)
    plain, order = module(keys, queries, key_places, places), torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(module(keys[:, :, order], queries, key_places[:, :, order], places), plain)
    torch.testing.assert_close(module(keys, queries, key_places + 17.25, places + 17.25), plain)


def test_the_worked_example() -> None:
    module = BridgingAttention(1, 1, cells=3).double()
    name, layer, scores = (
        "attention.0.coupling",
        module.attention[0],
        torch.tensor([0.0, math.log(3)], dtype=torch.float64),
    )
    with torch.no_grad():
        for linear in (layer.query, layer.key):
            linear.weight.zero_()
        for linear in (layer.value, layer.proj):
            linear.weight.fill_(1)
    keys = torch.tensor([2.0, -4.0], dtype=torch.float64).view(1, 1, 2, 1)
    query, places = torch.ones(1, 1, 1, dtype=torch.float64), torch.zeros(1, 1, 2, dtype=torch.float64)
    with intervene(module, scores={name: lambda given: given + scores}), record(module) as trace:
        out = module(keys, query, torch.zeros(1, 1, 2, 2, dtype=torch.float64), places)
    shares = trace[name].flatten()
    torch.testing.assert_close(shares, torch.tensor([0.25, 0.75], dtype=torch.float64))
    torch.testing.assert_close((shares @ keys.flatten()).item(), -2.5)
    assert out.item() == 0


@pytest.mark.parametrize("exact", [True, False])
def test_the_separable_table_is_the_full_one_sampled_bilinearly(exact: bool) -> None:
    table = LocationTable(3, 21, exact=exact).double()
    torch.nn.init.normal_(table.weight)
    across, down = table.axes()
    full = (across[None] + down[:, None] + table.bias).permute(2, 0, 1)  # heads, y, x
    offsets = 26 * torch.rand(50, 2, dtype=torch.float64) - 13
    sampled = F.grid_sample(
        full[None], offsets[None, None] / 10, padding_mode="border", align_corners=exact
    )  # the released code divides by half the table and aligns pixels by their borders
    torch.testing.assert_close(table(offsets), sampled[0, :, 0].T, rtol=1e-5, atol=1e-5)
    for x, y in ((0, 0), (-10, 3), (7, 10)):
        place = torch.tensor([x, y], dtype=torch.float64)
        torch.testing.assert_close(full[:, y + 10, x + 10], table_by_loops(table, x, y), rtol=1e-5, atol=1e-5)
        assert torch.allclose(table(place), full[:, y + 10, x + 10]) == (exact or x == y == 0)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="cells is 8"):
        LocationTable(2, 8)
    keys, queries, key_places, places = inputs(2, 6)
    with pytest.raises(UsageError, match=r"keys are \(2, 2, 4, 6\)"):
        randomised(6, 2, cells=9)(keys, queries, key_places, places)
    with pytest.raises(UsageError, match="unit"):
        randomised(6, 2, 2, cells=9)(keys, queries, key_places, places, 0.0)


def test_a_mask_may_differ_between_key_types() -> None:
    module, (keys, queries, key_places, places) = randomised(6, 2, 2, cells=9), inputs(2, 6)
    mask = torch.ones(2, 2, 4, dtype=torch.bool)
    mask[:, 1, 2:] = False
    with record(module) as trace:
        module(keys, queries, key_places, places, mask=mask)
    first, second = (trace[f"attention.{kind}.coupling"] for kind in range(2))
    assert bool((first > 0).all()) and not bool(second[..., 2:].any())


def test_without_a_table_each_pair_is_embedded_by_itself() -> None:
    table, direct = LocationTable(2, 9).double(), LocationTable(2, None).double()
    direct.load_state_dict(table.state_dict())
    offsets = torch.tensor([[0.0, 0.0], [-4.0, 3.0]], dtype=torch.float64)
    torch.testing.assert_close(direct(offsets), table(offsets), rtol=1e-6, atol=1e-8)
