"""Every topology: its dense mask, index table, tiles and block mask are the same pairs, as a rule with loops states."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from mereo.core import Causal, Circle, Coupling, Neighborhood, Topology
from mereo.core.kernels.exchange import METHODS, Exchange, exchange
from mereo.core.topology import Blocks, Halo, KeyLists, SequenceBlocks, Spread, Tiles, Windows, regions
from mereo.core.topology.circle import ImageCircle

Cell = tuple[int, ...]
Rule = Callable[[Cell, Cell], bool]


def cells(*sides: int) -> list[Cell]:
    return list(product(*map(range, sides)))


def near(first: int, cell: int, before: int, behind: int) -> bool:
    return first - before <= cell < first + behind


ROUTES = torch.tensor(
    [[[0, 3], [1, 2], [5, 1], [0, 1], [4, 0], [2, 5]], [[5, 4], [0, 2], [1, 0], [3, 2], [2, 4], [0, 5]]]
)
# topology, cells of the receivers and of the senders, whether one sees another
CASES: list[tuple[Topology, list[Cell], list[Cell], Rule]] = [
    (Causal(), cells(4), cells(6), lambda r, s: s[0] <= r[0] + 2),
    (Blocks((5, 7), (2, 3)), cells(5, 7), cells(5, 7), lambda r, s: r[0] // 2 == s[0] // 2 and r[1] // 3 == s[1] // 3),
    (Blocks((4, 3), (2, 1), (3, 4)), cells(4, 3), cells(4, 3), lambda r, s: r[0] // 2 == s[0] // 2 and r[1] == s[1]),
    (Spread((5, 6), (2, 3)), cells(5, 6), cells(5, 6), lambda r, s: r[0] % 3 == s[0] % 3 and r[1] % 2 == s[1] % 2),
    (Halo((5, 6), 2, 1), cells(5, 6), cells(5, 6),
     lambda r, s: all(near(a // 2 * 2, b, 1, 3) for a, b in zip(r, s, strict=True))),
    (Halo((7, 6), 4, 1, 2), cells(4, 3), cells(7, 6),
     lambda r, s: all(near(a // 2 * 4, b, 1, 5) for a, b in zip(r, s, strict=True))),
    (SequenceBlocks(8, 3), cells(8), cells(8), lambda r, s: near(r[0] // 3 * 3, s[0], 3, 6)),
    (SequenceBlocks(8, 3, True), cells(8), cells(8), lambda r, s: r[0] // 3 * 3 - 3 <= s[0] <= r[0]),
    (Windows(5, 6, (3, 2), (2, 1), (1, 0), (1, 2)), cells(3, 7), cells(5, 6),
     lambda r, s: near(2 * r[0] - 1, s[0], 0, 3) and near(r[1], s[1], 0, 2)),
    (Neighborhood((7, 5), (3, 2), (2, 1), (2, 1), (False, True)), cells(7, 5), cells(7, 5), None),
    (Neighborhood((11,), 4, 3, extra=2), cells(11), cells(13), None),
    (Circle((4, 6), 2.5, 2, 2), cells(26), cells(32), None),
    (ImageCircle(Circle((9, 17), 3, 1)), cells(153), cells(154), None),
]  # fmt: skip
GIVEN = [
    regions(Blocks((4, 5), (2, 2)), ROUTES),
    Tiles(torch.tensor([[0, 2], [1, -1]]), torch.tensor([[3, -1, 0], [1, 2, -1]]), 3, 4),
    Tiles(torch.randint(0, 5, (2, 3, 4, 2)), torch.randint(-1, 6, (2, 3, 4, 3)), 5, 6),
    KeyLists(torch.tensor([[[[2, 0, -1], [1, -1, -1]]], [[[3, 1, 2], [-1, -1, -1]]]]), 4),
]


def of_table(table: Tensor, senders: int) -> Tensor:
    """The pairs of an index table; no sender is listed twice."""
    mask = torch.zeros(*table.shape[:-1], senders + 1, dtype=torch.int64)
    mask = mask.scatter_add(-1, table % (senders + 1), torch.ones_like(table))[..., :-1]
    assert mask.max() <= 1
    return mask > 0


def of_block_mask(mask: Any, shape: torch.Size) -> Tensor:
    """The pairs that FlexAttention would compute."""
    images, heads, receivers, senders = shape
    b, h, r, s = torch.meshgrid(*map(torch.arange, (images, heads, receivers, senders)), indexing="ij")
    return mask.mask_mod(b, h, r, s).expand(shape)


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case[0]).__name__)
def test_the_four_forms_are_the_same_pairs(case: tuple[Topology, list[Cell], list[Cell], Rule | None]) -> None:
    topology, receivers, senders, rule = case
    counts = (len(receivers), len(senders))
    allowed = topology.allowed(*counts)
    assert topology.counts in (None, counts) and allowed.shape == counts
    if rule is not None:
        assert allowed.tolist() == [[rule(r, s) for s in senders] for r in receivers]
    assert torch.equal(of_table(topology.table(*counts), counts[1]), allowed)
    tiles = topology.tiles(*counts)
    placed = tiles.place(tiles.pairs[:, None].double(), sparse=False)[0, 0]
    assert torch.equal(placed, allowed.double()), "every pair is in one tile"
    assert torch.equal(tiles.allowed(), allowed)
    mask = topology.block_mask(*counts)
    assert torch.equal(of_block_mask(mask, torch.Size((1, 1, *counts)))[0, 0], allowed)
    # Blocks of 128 x 128 pairs without any are left out as a whole.
    assert mask.to_dense().shape[-2:] == tuple(-(-count // 128) for count in counts)


@pytest.mark.parametrize("tiles", GIVEN, ids=["regions", "tiles", "heads", "lists"])
def test_tiles_of_a_pass_are_a_topology(tiles: Tiles) -> None:
    allowed = tiles.allowed()
    whole = allowed if allowed.dim() == 4 else allowed[None, None]
    for b, h, r, s in whole.new_ones(whole.shape).nonzero().tolist():
        receivers, senders = (x.expand(*whole.shape[:2], *x.shape[-2:])[b, h] if x.dim() != 3 else x[b]
                              for x in (tiles.receivers, tiles.senders))  # fmt: skip
        if isinstance(tiles, KeyLists):
            expected = s in senders[r].tolist()
        else:
            expected = any(r in rs and s in ss for rs, ss in zip(receivers.tolist(), senders.tolist(), strict=True))
        assert whole[b, h, r, s] == expected
    assert torch.equal(of_table(tiles.table(), tiles.num_senders), allowed)
    assert torch.equal(of_block_mask(tiles.block_mask(), whole.shape), whole)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "flex"])
@pytest.mark.parametrize("case", [case for case in CASES if case[0].counts], ids=lambda case: type(case[0]).__name__)
def test_every_execution_attends_to_the_pairs(case: tuple[Topology, list[Cell], list[Cell], Rule], method: str) -> None:
    topology, counts = case[0], (len(case[1]), len(case[2]))
    if method == "compiled" and METHODS[method][1](call(topology, counts)) is not None:
        pytest.skip("there is no compiled pass for it here")
    given = call(topology, counts)
    scores = (given.q.double() @ given.k.double().mT / 2).masked_fill(~topology.allowed(*counts), -torch.inf)
    out, lse = exchange(given, method)
    torch.testing.assert_close(out, (scores.softmax(-1).nan_to_num() @ given.v.double()).float(), rtol=1e-5, atol=1e-6)
    assert lse is not None
    torch.testing.assert_close(lse, scores.logsumexp(-1).float(), rtol=1e-5, atol=1e-6)


def call(topology: Topology, counts: tuple[int, int]) -> Exchange:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, count, 4) for count in (counts[0], counts[1], counts[1]))
    return Exchange(q, k, v, topology, Coupling("senders"), 0.5, with_lse=True)


def test_a_mask_and_a_bias_of_any_topology() -> None:
    topology, masked = Blocks((4, 5), (2, 3)), torch.rand(2, 20) > 0.4
    given = call(topology, (20, 20))
    weights = torch.linspace(-1, 1, 3).view(3, 1, 1)
    given = Exchange(given.q, given.k, given.v, topology, given.coupling, 0.5, mask=masked,
                     bias=lambda r, s: weights.view(3, *[1] * (r + s).dim()) * (s - r))  # fmt: skip
    apart = torch.arange(20) - torch.arange(20).unsqueeze(1)
    scores = (given.q @ given.k.mT / 2 + weights * apart).masked_fill(~topology.allowed(20, 20), -torch.inf)
    expected = scores.masked_fill(~masked[:, None, None], -torch.inf).softmax(-1).nan_to_num() @ given.v
    for method in ("tiles", "gathered", "dense"):
        torch.testing.assert_close(exchange(given, method)[0], expected, rtol=1e-5, atol=1e-5)
