"""Tiles: windows and grids of an image, and couplings inside them placed over the whole image."""

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.core import Coupling
from mereo.core.kernels.attention import attend
from mereo.core.topology import Blocks, Spread, Tiles, Topology
from mereo.core.topology import Windows as CapsuleWindows
from mereo.core.topology.base import LARGEST_DENSE
from mereo.errors import UsageError


def test_windows_and_grids_of_sixteen_cells() -> None:
    cells = torch.arange(16.0).view(1, 4, 4, 1)
    windows = [set(row) for row in Blocks((4, 4), (2, 2)).cut(cells).squeeze(-1).tolist()]
    grids = [set(row) for row in Spread((4, 4), (2, 2)).cut(cells).squeeze(-1).tolist()]
    assert windows == [{0, 1, 4, 5}, {2, 3, 6, 7}, {8, 9, 12, 13}, {10, 11, 14, 15}]
    assert grids == [{0, 2, 8, 10}, {1, 3, 9, 11}, {4, 6, 12, 14}, {5, 7, 13, 15}]


@pytest.mark.parametrize("size", [(3, 2), (4, 3)], ids=["dividing", "padded"])
@pytest.mark.parametrize("kind", [Blocks, Spread])
def test_cutting_is_undone_and_numbered_alike(kind: type[Blocks] | type[Spread], size: tuple[int, int]) -> None:
    maps, topology = torch.randn(2, 6, 8, 3), kind((6, 8), size)
    cells, numbers = topology.cut(maps), topology.tiles().receivers
    assert torch.equal(topology.join(cells), maps)
    picked = torch.where((numbers < 0).unsqueeze(-1), 0.0, maps.flatten(1, 2)[:, numbers])
    assert torch.equal(picked.flatten(0, 1), cells)


class Windows(nn.Module):
    """Attention inside windows without projections."""

    def __init__(self, topology: Topology) -> None:
        super().__init__()
        self.coupling, self.topology = Coupling("senders"), topology

    def forward(self, cells: Tensor) -> Tensor:
        return attend(cells, cells, cells, self.coupling, tiles=self.topology)


def test_couplings_are_recorded_and_changed_over_the_whole_image() -> None:
    model = Windows(Blocks((4, 6), (2, 3)))
    cells = torch.randn(2 * 4, 1, 6, 5)
    with mereo.record(model) as trace:
        out = model(cells)
    (call,) = trace.calls("coupling")
    whole = trace["coupling"]
    assert call.couplings is not None and call.couplings.shape == (8, 1, 6, 6)
    assert whole.shape == trace.scores("coupling")[0].shape == (2, 1, 24, 24)
    expected = torch.zeros(2, 24, 24)
    for image in range(2):
        for tile, numbers in enumerate(model.topology.tiles().receivers.tolist()):
            for i, r in enumerate(numbers):
                for j, s in enumerate(numbers):
                    expected[image, r, s] = call.couplings[4 * image + tile, 0, i, j]
    assert torch.equal(whole[:, 0], expected)
    torch.testing.assert_close(whole.sum(-1), torch.ones(2, 1, 24))

    # Receiver 7 has only sender 8.
    def only(couplings: Tensor) -> Tensor:
        assert couplings.shape == (2, 1, 24, 24)
        couplings = couplings.clone()
        couplings[:, :, 7] = 0
        couplings[:, :, 7, 8] = 1
        return couplings

    with mereo.intervene(model, {"coupling": only}), mereo.record(model) as changed:
        after = model(cells)
    assert torch.equal(changed["coupling"][:, 0, 7, 8], torch.ones(2))
    # Cells 7 and 8 are places 4 and 5 of the first window.
    torch.testing.assert_close(after[0, 0, 4], cells[0, 0, 5])
    torch.testing.assert_close(after[1:4], out[1:4])
    with mereo.intervene(model, {"coupling": lambda couplings: couplings.clone()}):
        torch.testing.assert_close(model(cells), out)


def test_padding_is_placed_nowhere_and_stays() -> None:
    tiles = Blocks((3, 3), (2, 2)).tiles()
    couplings = torch.rand(2 * 4, 1, 4, 4)
    whole = tiles.place(couplings)
    assert whole.shape == (2, 1, 9, 9) and whole[0, 0, 8].count_nonzero() == 1
    assert torch.equal(whole[0, 0, 8, 8], couplings[3, 0, 0, 0])
    assert torch.equal(tiles.pick(whole, couplings), couplings)
    assert torch.equal(
        tiles.pick(2 * whole, couplings)[3, 0, 0], torch.cat([2 * couplings[3, 0, 0, :1], couplings[3, 0, 0, 1:]])
    )


def test_senders_may_differ_between_images_and_tiles_overlap() -> None:
    senders = torch.tensor([[[0, 1], [2, 3]], [[2, 1], [0, 3]]])
    tiles = Tiles(torch.tensor([[0], [1]]), senders, 2, 4)
    couplings = torch.rand(4, 3, 1, 2)
    whole = tiles.place(couplings)
    assert torch.equal(whole[1, :, 0, 2], couplings[2, :, 0, 0]) and torch.equal(
        whole[1, :, 1, 0], couplings[3, :, 0, 0]
    )
    assert tiles.exclusive
    overlapping = Tiles(torch.tensor([[0], [0]]), torch.tensor([[0, 1], [1, 2]]), 1, 3)
    assert not overlapping.exclusive
    summed = overlapping.place(couplings[:2])
    assert torch.equal(summed[0, :, 0, 1], couplings[0, :, 0, 1] + couplings[1, :, 0, 0])
    with pytest.raises(UsageError, match="tiles are of 2 images"):
        tiles.place(torch.rand(6, 3, 1, 2))


def test_large_maps_are_sparse_with_the_same_values() -> None:
    tiles = Spread((6, 4), (3, 2)).tiles()
    couplings = torch.rand(2 * 4, 2, 6, 6)
    dense, sparse = tiles.place(couplings), tiles.place(couplings, sparse=True)
    assert sparse.layout == torch.sparse_coo and torch.equal(sparse.to_dense(), dense)
    assert tiles.dense(couplings) and dense.layout == torch.strided
    side = 96
    many = Blocks((side, side), (8, 8)).tiles()
    assert side**4 > LARGEST_DENSE
    ones = torch.ones(144, 1, 64, 64)
    placed = many.place(ones)
    assert not many.dense(ones)
    assert placed.layout == torch.sparse_coo and placed.shape == (1, 1, side**2, side**2)


@pytest.mark.parametrize("masked", [False, True])
def test_a_bias_is_added_to_the_scores_by_every_method(masked: bool) -> None:
    q, k, v = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 6, 5), torch.randn(2, 3, 6, 7)
    bias = torch.randn(3, 4, 6)
    mask = torch.rand(2, 1, 4, 6) > 0.5 if masked else None
    if mask is not None:
        mask[0, 0, 0] = False
    coupling = Coupling("senders")
    scores = q @ k.mT / 5**0.5 + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e30)
    expected = scores.softmax(-1) @ v
    if mask is not None:
        expected[0, :, 0] = 0
    for method in ("plain", "sdpa"):
        out = attend(q, k, v, coupling, mask=mask, bias=bias, method=method)
        torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("sparse", [False, True])
def test_heads_may_have_tiles_of_their_own(sparse: bool) -> None:
    receivers = torch.stack([torch.stack([torch.randperm(6).view(3, 2) for _ in range(2)]) for _ in range(4)])
    senders = torch.randint(-1, 5, (4, 2, 3, 3))
    senders[0, 0, 0] = torch.tensor([1, -1, 4])
    tiles = Tiles(receivers, senders, 6, 5)
    assert tiles.exclusive and tiles.count == 3
    couplings = torch.rand(4 * 3, 2, 2, 3)
    whole = tiles.place(couplings, sparse=sparse)
    expected = torch.zeros(4, 2, 6, 5)
    for image in range(4):
        for head in range(2):
            for tile in range(3):
                for i, r in enumerate(receivers[image, head, tile].tolist()):
                    for j, s in enumerate(senders[image, head, tile].tolist()):
                        if s >= 0:
                            expected[image, head, r, s] += couplings[image * 3 + tile, head, i, j]
    torch.testing.assert_close(whole.to_dense() if sparse else whole, expected)
    one = Tiles(receivers, receivers, 6, 6)
    couplings = torch.rand(4 * 3, 2, 2, 2)
    assert torch.equal(one.pick(one.place(couplings), torch.zeros_like(couplings)), couplings)


@pytest.mark.parametrize("kernel", [(2, 3), (3, 2), (1, 1)])
def test_windows_with_more_zeros_after_the_map_than_before(kernel: tuple[int, int]) -> None:
    maps = torch.randn(2, 3, 5, 4, 6)
    padded = torch.nn.functional.pad(maps, (1, 3, 0, 1))
    windows = CapsuleWindows(4, 6, kernel, (2, 2), (0, 1), (1, 2))
    whole = CapsuleWindows(5, 10, kernel, (2, 2))
    assert windows.padded and windows.sides == whole.sides
    assert torch.equal(windows.gather(maps), whole.gather(padded))
    numbers = torch.arange(24.0).view(1, 1, 4, 6) + 1
    read = windows.gather(numbers).long() - 1  # 0 is beyond the map
    assert torch.equal(read, windows.cells())
    for cell, places in enumerate(windows.covers().tolist()):
        expected = (windows.cells().flatten() == cell).nonzero().flatten().tolist()
        assert sorted(place for place in places if place >= 0) == expected
