"""Block attention against its equations, and what it shares with grid attention."""

import pytest
import torch
from torch import nn

import mereo
from mereo.core.relative_positions import RelativePositionNetwork
from mereo.core.topology import Blocks
from mereo.errors import UsageError
from mereo.mechanisms.attention import BlockAttention, GridAttention
from tiled_attention import by_loops, perturbed


def test_loops_give_the_same() -> None:
    attention, maps = perturbed(BlockAttention(4, (2, 3), head_dim=2)), torch.randn(2, 4, 6, 4, dtype=torch.float64)
    windows = [[(2 * y + r) * 6 + 3 * x + c for r in range(2) for c in range(3)] for y in range(2) for x in range(2)]
    torch.testing.assert_close(attention(maps), by_loops(attention, maps, torch.tensor(windows)))


def test_without_positions_the_order_inside_a_window_does_not_matter() -> None:
    attention = perturbed(BlockAttention(4, (2, 2), head_dim=2))
    nn.init.zeros_(attention.positions.table)
    cells, order = torch.randn(3, 4, 4, dtype=torch.float64), torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(attention.attend_inside(cells[:, order]), attention.attend_inside(cells)[:, order])
    nn.init.normal_(attention.positions.table)
    assert not torch.allclose(attention.attend_inside(cells[:, order]), attention.attend_inside(cells)[:, order])


def test_a_changed_cell_reaches_its_window_and_no_other() -> None:
    attention, maps = perturbed(BlockAttention(4, (2, 2), head_dim=2)), torch.randn(1, 4, 4, 4, dtype=torch.float64)
    changed = maps.clone()
    changed[0, 1, 2] += 1
    reached = (attention(changed) != attention(maps)).any(-1)[0].nonzero().tolist()
    assert reached == [[0, 2], [0, 3], [1, 2], [1, 3]]


@pytest.mark.parametrize("window", [(2, 2), (3, 3)])
def test_one_window_is_full_attention_as_one_grid_is(window: tuple[int, int]) -> None:
    block, grid = perturbed(BlockAttention(4, window, head_dim=2)), GridAttention(4, window, head_dim=2).double()
    grid.load_state_dict(block.state_dict())
    maps = torch.randn(2, *window, 4, dtype=torch.float64)
    torch.testing.assert_close(block(maps), grid(maps))


@pytest.mark.parametrize(("size", "covers"), [((4, 4), True), ((6, 6), False)])
def test_block_and_grid_in_sequence_cover_the_image_where_windows_are_large_enough(
    size: tuple[int, int], covers: bool
) -> None:
    # P >= H / G: 2 >= 4 / 2, but 2 < 6 / 2.
    block, grid = (perturbed(kind(4, (2, 2), head_dim=2)) for kind in (BlockAttention, GridAttention))
    maps = torch.randn(1, *size, 4, dtype=torch.float64)
    changed = maps.clone()
    changed[0, 0, 0] += 1
    reached = (grid(block(changed)) != grid(block(maps))).any(-1)
    assert bool(reached.all()) == covers


def test_couplings_lie_where_the_windows_are() -> None:
    attention, maps = BlockAttention(4, (2, 2), head_dim=2).eval(), torch.randn(2, 4, 6, 4)
    plain = attention(maps)
    with mereo.record(attention) as trace:
        torch.testing.assert_close(attention(maps), plain)
    couplings, tiles = trace["coupling"], Blocks((4, 6), (2, 2)).tiles()
    assert couplings.shape == (2, 2, 24, 24)
    torch.testing.assert_close(couplings.sum(-1), torch.ones(2, 2, 24))
    together = torch.zeros(24, 24, dtype=torch.bool)
    for cells in tiles.receivers.tolist():
        together[torch.tensor(cells)[:, None], torch.tensor(cells)] = True
    assert torch.equal(couplings[0, 0] > 0, together)


def test_other_positions_and_widths() -> None:
    attention = BlockAttention(4, (2, 2), 4, out_dim=8, positions=RelativePositionNetwork)
    assert attention.heads == 2 and attention(torch.randn(1, 2, 4, 4)).shape == (1, 2, 4, 8)
    narrow = BlockAttention(8, (2, 2), 4, out_dim=4)
    assert narrow.heads == 2 and narrow(torch.randn(1, 2, 4, 8)).shape == (1, 2, 4, 4)
    narrow.resize((4, 4))
    assert narrow.positions.table.shape == (2, 7, 7) and narrow(torch.randn(1, 4, 8, 8)).shape == (1, 4, 8, 4)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="window is 2"):
        BlockAttention(8, 2)
    with pytest.raises(UsageError, match="dim is 6 and head_dim 4"):
        BlockAttention(6, (2, 2), 4)
    with pytest.raises(UsageError, match="rows a multiple of 2 and columns one of 3"):
        BlockAttention(4, (2, 3), 4)(torch.randn(1, 4, 4, 4))
