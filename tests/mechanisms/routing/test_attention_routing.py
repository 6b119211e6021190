"""Attention routing: loops over types and positions, means, recorded children, interventions, precision, refusals."""

from typing import Any

import pytest
import torch
from torch import Tensor

import mereo
from mereo.core import Call
from mereo.core.shapes import same_padding
from mereo.errors import UsageError
from mereo.mechanisms.routing import AttentionRouting

D = torch.float64
FORMS: list[dict[str, Any]] = [
    {},
    {"stride": 2},
    {"kernel": (3, 5), "same": False},
    {"kernel": 2, "stride": 3},
    {"kernel": 1},
]


def some(senders: int = 4, receivers: int = 3, sides: tuple[int, int] = (4, 5), **options: Any) -> Any:
    torch.manual_seed(0)
    module = AttentionRouting(senders, receivers, 2, 5, **options).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return module.eval(), torch.randn(2, senders, 2, *sides, dtype=D)


def by_loops(module: AttentionRouting, maps: Tensor) -> tuple[Tensor, dict[tuple[int, ...], Tensor]]:
    """The equations with indices, differentiable; shares by (image, type of child, type of parent, row, column)."""
    I, J, E, _, KY, KX = module.weight.shape  # noqa: E741
    H, W = maps.shape[3:]
    s = module.stride
    if module.same:
        top, left = same_padding(H, KY, s)[0], same_padding(W, KX, s)[0]
        rows, columns = -(-H // s), -(-W // s)
    else:
        top = left = 0
        rows, columns = (H - KY) // s + 1, (W - KX) // s + 1
    images, shares = [], {}
    for b in range(len(maps)):
        parents = [[[torch.zeros(E, dtype=D)] * columns for _ in range(rows)] for _ in range(J)]
        for y in range(rows):
            for x in range(columns):
                for j in range(J):
                    votes = []
                    for i in range(I):
                        vote = module.bias[i, j]
                        for ky in range(KY):
                            for kx in range(KX):
                                row, column = y * s - top + ky, x * s - left + kx
                                if 0 <= row < H and 0 <= column < W:
                                    vote = vote + module.weight[i, j, :, :, ky, kx] @ maps[b, i, :, row, column]
                        votes.append(vote)
                    scores = [sum((module.score[j, i, k] * votes[k]).sum() for k in range(I)) for i in range(I)]
                    total = sum(score.exp() for score in scores)
                    combined = torch.zeros(E, dtype=D)
                    for i in range(I):
                        shares[b, i, j, y, x] = scores[i].exp() / total
                        combined = combined + shares[b, i, j, y, x] * votes[i]
                    parents[j][y][x] = module.transform[j] @ combined + module.shift[j]
        images.append(torch.stack([torch.stack([torch.stack(line, 1) for line in each], 1) for each in parents]))
    return torch.stack(images), shares


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_equals_loops_with_gradients(options: dict[str, Any]) -> None:
    module, maps = some(**options)
    inputs = (maps.requires_grad_(), *module.parameters())
    fast, (slow, shares) = module(maps), by_loops(module, maps)
    torch.testing.assert_close(fast, slow)
    attention = module.attention(maps)
    for place, share in shares.items():
        torch.testing.assert_close(attention[place], share)
    weights = torch.randn_like(slow)
    for got, expected in zip(*(torch.autograd.grad((x * weights).sum(), inputs) for x in (fast, slow)), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(("senders", "receivers"), [(1, 3), (4, 1), (1, 1)])
def test_one_type_of_children_or_of_parents(senders: int, receivers: int) -> None:
    module, maps = some(senders, receivers, (2, 3))
    torch.testing.assert_close(module(maps), by_loops(module, maps)[0])
    if senders == 1:
        assert (module.attention(maps) == 1).all()


@torch.no_grad()
def test_the_shares_of_the_types_sum_to_one() -> None:
    module, maps = some()
    torch.testing.assert_close(module.attention(maps).sum(1), torch.ones(2, 3, 4, 5, dtype=D))


@torch.no_grad()
def test_without_score_weights_the_block_is_affine() -> None:
    module, maps = some()
    module.score.zero_()
    combined = module.votes_of(maps).mean(1)
    expected = torch.einsum("jed,bjdyx->bjeyx", module.transform, combined) + module.shift[..., None, None]
    torch.testing.assert_close(module(maps), expected)
    other = torch.randn_like(maps)
    torch.testing.assert_close(module((maps + other) / 2), (module(maps) + module(other)) / 2)


@torch.no_grad()
def test_a_constant_added_to_all_scores_of_a_parent_changes_nothing() -> None:
    module, maps = some()
    expected = module(maps)

    def raised(scores: Tensor) -> Tensor:
        return scores + torch.tensor([3.0, -2.0, 700.0], dtype=D)[:, None]

    with mereo.intervene(module, scores={"coupling": raised}):
        torch.testing.assert_close(module(maps), expected)
    # The same by the weights: one vector for the scores of all types.
    module.score[1] += torch.randn(1, 4, 5, dtype=D)
    torch.testing.assert_close(module(maps), expected)


@torch.no_grad()
def test_scores_of_a_child_depend_on_the_votes_of_all() -> None:
    module, maps = some()
    before = module.attention(maps)
    other = maps.clone()
    other[:, 2] += 1.0
    after = module.attention(other)
    assert ((after[:, 0] / after[:, 1]) / (before[:, 0] / before[:, 1]) - 1).abs().min() > 1e-6


@torch.no_grad()
@pytest.mark.parametrize("options", FORMS, ids=str)
def test_recording_shows_the_share_of_every_child_in_every_parent(options: dict[str, Any]) -> None:
    module, maps = some(**options)
    plain = module(maps)
    with mereo.record(module) as trace:
        torch.testing.assert_close(module(maps), plain)
    couplings, attention = trace["coupling"], module.attention(maps)
    windows, (rows, columns) = module.windows(4, 5), attention.shape[3:]
    assert couplings.shape == (2, 1, 3 * rows * columns, 4 * 20)
    expected = torch.zeros_like(couplings)
    for p, cells in enumerate(windows.cells().tolist()):
        for j in range(3):
            for i in range(4):
                for cell in cells:
                    if cell >= 0:
                        expected[:, 0, j * rows * columns + p, i * 20 + cell] = attention[:, i, j].flatten(1)[:, p]
    torch.testing.assert_close(couplings, expected)


@torch.no_grad()
def test_a_child_without_a_coupling_has_no_influence() -> None:
    module, maps = some(kernel=(4, 5), same=False)
    module.bias.zero_()

    def without(couplings: Tensor, call: Call) -> Tensor:
        assert call.tiles is not None
        gone = (call.tiles.senders == 2 * 20 + 7)[:, None, None].repeat(2, 1, 1, 1)
        return couplings.masked_fill(gone, 0)

    other = maps.clone()
    other[:, 2, :, 1, 2] = 0
    attention = module.attention(maps)[..., 0, 0]
    combined = torch.einsum("bij,bijd->bjd", attention, module.votes_of(other)[..., 0, 0])
    expected = torch.einsum("jed,bjd->bje", module.transform, combined) + module.shift
    with mereo.intervene(module, {"coupling": without}):
        torch.testing.assert_close(module(maps)[..., 0, 0], expected)


@torch.no_grad()
@pytest.mark.parametrize("options", FORMS, ids=str)
def test_votes_of_children_sum_to_the_parents(options: dict[str, Any]) -> None:
    module, maps = some(**options)
    with mereo.record(module) as trace:
        parents = module.in_a_row(module(maps))
    votes = module.votes(maps)
    module.bias.zero_()  # what is beyond the map has a part of the bias and no vote
    images, numbers = torch.tensor([0, 1]), torch.tensor([1, parents.shape[1] - 1])
    unbiased = module.votes(maps).select(images, numbers).squeeze(1)
    sums = (trace["coupling"][images, 0, numbers].unsqueeze(-1) * unbiased).sum(1)
    bias = votes.select(images, numbers).squeeze(1) - unbiased
    whole = sums + (trace["coupling"][images, 0, numbers].unsqueeze(-1) * bias).sum(1)
    shift = module.shift[numbers // (parents.shape[1] // 3)]
    cells = module.windows(4, 5).cells()[numbers % (parents.shape[1] // 3)]
    for n in range(2):
        if (cells[n] >= 0).all():
            torch.testing.assert_close((whole + shift)[n], parents[images[n], numbers[n]])
    assert unbiased.shape == (2, 4 * 20, 5)


def test_dropout_acts_on_the_numbers_of_the_children_in_training_only() -> None:
    module, maps = some(kernel=1, dropout=0.5)
    assert torch.equal(module(maps), module(maps))
    module.train()
    with torch.no_grad():
        assert not torch.equal(module(maps), module(maps))
        module.score.zero_()
        many = torch.stack([module(maps) for _ in range(2000)]).mean(0)
        torch.testing.assert_close(many, module.eval()(maps), rtol=0, atol=0.5)


@torch.no_grad()
def test_dropout_acts_on_single_numbers_and_before_the_votes() -> None:
    module = AttentionRouting(1, 1, 4, 4, kernel=1, dropout=0.5).double()
    # One type of children has a share of 1; with these weights the parents are what is left of the children.
    module.weight.copy_(torch.eye(4, dtype=D).view_as(module.weight))
    module.transform.copy_(torch.eye(4, dtype=D).view_as(module.transform))
    maps = torch.rand(3, 1, 4, 6, 5, dtype=D) + 1
    factors = module(maps) / maps
    assert set(factors.flatten().tolist()) == {0.0, 2.0}
    dropped = (factors == 0).squeeze(1)
    assert dropped.double().mean().item() == pytest.approx(0.5, abs=0.15)
    for axis in (0, 1, 2, 3):  # neither images, capsules, rows nor columns are dropped as one
        assert (dropped.any(axis) & ~dropped.all(axis)).any()


@pytest.mark.parametrize("scale", [0.0, 1e4, 1e30])
def test_zero_and_huge_maps_are_finite(scale: float) -> None:
    module, maps = some()
    module, maps = module.float(), (scale * maps).float().requires_grad_()
    parents = module(maps)
    parents.sum().backward()
    assert parents.isfinite().all() and maps.grad is not None and maps.grad.isfinite().all()
    if scale > 1:
        shares = module.attention(maps)
        assert shares.isfinite().all() and shares.amax(1).min() > 0.999, "huge scores choose one type"


@torch.no_grad()
def test_equal_votes_give_equal_shares() -> None:
    module, maps = some()
    module.weight.copy_(module.weight[:1].clone().expand_as(module.weight))
    module.bias.copy_(module.bias[:1].clone().expand_as(module.bias))
    module.score.copy_(module.score[:, :1].clone().expand_as(module.score))
    shares = module.attention(maps[:, :1].expand(-1, 4, -1, -1, -1))
    torch.testing.assert_close(shares, torch.full_like(shares, 0.25))


@torch.no_grad()
def test_negligible_shares_add_nothing() -> None:
    module, maps = some()

    def mostly_first(scores: Tensor) -> Tensor:
        return scores - torch.tensor([0.0, 1e4, 1e4, 1e30], dtype=D)

    with mereo.intervene(module, scores={"coupling": mostly_first}):
        parents = module(maps)
    first = module.votes_of(maps)[:, 0]
    expected = torch.einsum("jed,bjdyx->bjeyx", module.transform, first) + module.shift[..., None, None]
    torch.testing.assert_close(parents, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    module, maps = some()
    expected = module(maps)
    got = module.to(dtype)(maps.to(dtype))
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, rtol=0.05, atol=0.1)
    with mereo.record(module) as trace:
        torch.testing.assert_close(module(maps.to(dtype)).double(), expected, rtol=0.05, atol=0.1)
    assert trace["coupling"].isfinite().all()


def test_start_and_counts() -> None:
    torch.manual_seed(0)
    module = AttentionRouting(8, 8, 16, 32)
    assert sum(p.numel() for p in module.parameters()) == 321_792
    assert sum(p.numel() for p in AttentionRouting(8, 8, 32, 32).parameters()) == 616_704
    assert sum(p.numel() for p in AttentionRouting(8, 8, 16, 16).parameters()) == 158_848
    largest = [(9 * 16 + 9 * 8 * 8 * 32, module.weight), (8 * 32 + 8, module.score), (64, module.transform)]
    for fans, weight in largest:
        assert weight.abs().max().item() == pytest.approx((6 / fans) ** 0.5, rel=1e-2)
    assert not module.bias.any() and not module.shift.any()


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="receivers is 0"):
        AttentionRouting(4, 0, 2, 5)
    with pytest.raises(UsageError, match="dropout is 1"):
        AttentionRouting(4, 3, 2, 5, dropout=1.0)
    module, maps = some()
    with pytest.raises(UsageError, match=r"maps are \(2, 3, 2, 4, 5\)"):
        module(maps[:, :3])
    with pytest.raises(UsageError, match="kernel"):
        some(kernel=7, same=False)[0](maps)
