"""Biases of relative positions against their definition."""

import pytest
import torch

from mereo.core.relative_positions import (
    RelativePositionNetwork,
    RelativePositions,
    look_up,
    resize_relative_table,
)
from mereo.errors import UsageError
from mereo.models.folding import folded


def test_offsets_are_those_of_the_sender_from_the_receiver() -> None:
    bias = look_up(torch.arange(9.0).view(1, 3, 3), (2, 2))
    assert bias[0, 0].tolist() == [[4, 5, 7, 8], [3, 4, 6, 7], [1, 2, 4, 5], [0, 1, 3, 4]]


def test_loops_give_the_same() -> None:
    positions = RelativePositions(3, (2, 4))
    bias = positions()
    for i in range(8):
        for j in range(8):
            offset = j // 4 - i // 4 + 1, j % 4 - i % 4 + 3
            assert torch.equal(bias[0, :, i, j], positions.table[(slice(None), *offset)])


def test_a_network_computes_the_bias_of_each_offset() -> None:
    positions = RelativePositionNetwork(2, (2, 3), hidden=5).eval()
    bias = positions()
    for i in range(6):
        for j in range(6):
            offset = torch.tensor([i // 3 - j // 3, i % 3 - j % 3], dtype=torch.float32)
            log = offset.sign() * (1 + offset.abs()).log()
            torch.testing.assert_close(bias[0, :, i, j], positions.second(positions.first(log).relu()))
    positions.resize((4, 4))
    assert positions().shape == (1, 2, 16, 16)
    assert not torch.equal(positions.train()(), positions()), "hidden units are dropped in training"


@pytest.mark.parametrize("kind", [RelativePositions, RelativePositionNetwork])
def test_the_bias_is_constant_in_inference(kind: type[RelativePositions] | type[RelativePositionNetwork]) -> None:
    positions = kind(2, (3, 2)).eval()
    ready = folded(torch.nn.Sequential(positions))[0]
    assert torch.equal(ready(), positions()) and list(ready.parameters()) == []


@pytest.mark.filterwarnings("ignore:torch.searchsorted", "ignore:Using a non-tuple sequence")  # inside timm
@pytest.mark.parametrize(("old", "new"), [((7, 7), (12, 12)), ((7, 7), (4, 5)), ((2, 3), (7, 7)), ((16, 16), (7, 7))])
def test_tables_are_resized_as_by_timm(old: tuple[int, int], new: tuple[int, int]) -> None:
    timm_layers = pytest.importorskip("timm.layers")
    positions = RelativePositions(2, old)
    rows, columns = new
    theirs = timm_layers.RelPosBiasTf(old, 2)
    theirs.relative_position_bias_table.data.copy_(positions.table.detach())
    theirs.set_window_size(new)
    positions.resize(new)
    assert positions.table.shape == (2, 2 * rows - 1, 2 * columns - 1)
    torch.testing.assert_close(positions.table, theirs.relative_position_bias_table)
    assert resize_relative_table(positions.table, new) is positions.table


def test_windows_must_have_cells() -> None:
    with pytest.raises(UsageError, match="window"):
        RelativePositions(2, (0, 3))
