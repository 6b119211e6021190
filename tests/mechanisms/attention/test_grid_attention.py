"""Grid attention against its equations."""

import torch

import mereo
from mereo.mechanisms.attention import GridAttention
from tiled_attention import by_loops, perturbed


def test_loops_give_the_same() -> None:
    attention, maps = perturbed(GridAttention(4, (2, 3), head_dim=2)), torch.randn(2, 4, 6, 4, dtype=torch.float64)
    groups = [[(y + 2 * r) * 6 + x + 2 * c for r in range(2) for c in range(3)] for y in range(2) for x in range(2)]
    torch.testing.assert_close(attention(maps), by_loops(attention, maps, torch.tensor(groups)))


def test_a_changed_cell_reaches_its_group_and_no_other() -> None:
    attention, maps = perturbed(GridAttention(4, (2, 2), head_dim=2)), torch.randn(1, 4, 4, 4, dtype=torch.float64)
    changed = maps.clone()
    changed[0, 1, 2] += 1
    reached = (attention(changed) != attention(maps)).any(-1)[0].nonzero().tolist()
    assert reached == [[1, 0], [1, 2], [3, 0], [3, 2]]


def test_couplings_join_cells_that_lie_evenly_over_the_image() -> None:
    attention = GridAttention(4, (2, 2), head_dim=2).eval()
    with mereo.record(attention) as trace:
        attention(torch.randn(1, 4, 4, 4))
    senders = (trace["coupling"][0, 0] > 0).nonzero()
    assert senders[senders[:, 0] == 0, 1].tolist() == [0, 2, 8, 10]
    assert senders[senders[:, 0] == 5, 1].tolist() == [5, 7, 13, 15]
