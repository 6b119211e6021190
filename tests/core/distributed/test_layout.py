"""Which tokens a process holds, and which pairs take part: every pair by its definition, balanced work, bad input."""

import pytest
import torch

from mereo.core.distributed.layout import LAYOUTS, pieces, shard_lengths, shard_positions
from mereo.errors import UsageError


def test_worked_positions() -> None:
    held = {name: [shard_positions(8, 2, rank, name).tolist() for rank in range(2)] for name in LAYOUTS}
    assert held["contiguous"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert held["zigzag"] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert held["striped"] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert shard_lengths(9, 2, "zigzag") == [5, 4] and shard_lengths(3, 4) == [1, 1, 1, 0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("length", "ranks"), [(16, 4), (13, 3), (17, 2), (3, 4), (5, 1), (23, 5)])
def test_every_pair_is_counted_once(layout: str, length: int, ranks: int) -> None:
    lengths = shard_lengths(length, ranks, layout)
    positions = [shard_positions(length, ranks, rank, layout) for rank in range(ranks)]
    assert torch.equal(torch.cat(positions).sort().values, torch.arange(length))
    assert all(torch.equal(p, p.sort().values) for p in positions)
    for causal in (False, True):
        for r in range(ranks):
            for s in range(ranks):
                taken = torch.zeros(lengths[r], lengths[s], dtype=torch.int64)
                for piece in pieces(layout, causal, r, s, lengths, lengths):
                    rows, columns = slice(*piece.rows), slice(*piece.columns)
                    part = torch.ones_like(taken[rows, columns])
                    if piece.causal:
                        assert part.shape[0] == part.shape[1]
                        part = part.tril()
                    assert piece.pairs == part.sum()
                    taken[rows, columns] += part
                allowed = positions[r].unsqueeze(1) >= positions[s] if causal else torch.ones_like(taken)
                assert torch.equal(taken, allowed.long())


def test_work_is_balanced_at_every_step() -> None:
    ranks, length = 4, 64
    for layout in LAYOUTS:
        lengths = shard_lengths(length, ranks, layout)
        steps = [
            [sum(p.pairs for p in pieces(layout, True, r, (r - s) % ranks, lengths, lengths)) for r in range(ranks)]
            for s in range(ranks)
        ]
        # A step takes the time of its slowest process.
        time = sum(max(step) for step in steps)
        best = length * (length + 1) / 2 / ranks
        assert time / best < 1.06 if layout != "contiguous" else time / best > 1.7


def test_bad_input() -> None:
    with pytest.raises(UsageError, match="layout is 'spiral'"):
        shard_positions(8, 2, 0, "spiral")
    with pytest.raises(UsageError, match="from 0 to 1"):
        shard_positions(8, 2, 2)
    with pytest.raises(UsageError, match="above 0"):
        shard_positions(8, 0, 0)
