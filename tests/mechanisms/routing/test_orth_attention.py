"""Orthogonal attention routing against loops over parents and children, with gradients."""

import pytest
import torch
from torch import Tensor

import mereo
from mereo.core.householder import product_of_reflections
from mereo.core.normalisers import entmax15
from mereo.errors import UsageError
from mereo.mechanisms.routing import OrthAttention

MODES = ("simplified", "full")
S, R, D = 5, 3, 4


def layer(mode: str, **options: object) -> OrthAttention:
    torch.manual_seed(0)
    made = OrthAttention(S, R, D, mode, **options).double()
    for parameter in made.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return made


def some_votes(batch: int = 2) -> Tensor:
    return 2 * torch.randn(batch, R, S, D, dtype=torch.float64)


def house(b: Tensor) -> Tensor:
    return torch.eye(len(b), dtype=b.dtype) - 2 * torch.outer(b, b) / (b @ b)


def slow(attention: OrthAttention, votes: Tensor) -> Tensor:
    images = []
    for u in votes:
        parents = []
        for j in range(u.shape[0]):
            count = u.shape[1]
            if attention.mode == "full":
                w_q, w_k, w_v = (product_of_reflections(v) for v in attention.turns.vectors)
                y = sum(u[j, i] for i in range(count)) / count
                logits = torch.stack([(w_q @ y) @ (w_k @ u[j, i]) / D**0.5 for i in range(count)])
                c = entmax15(logits, 0)
                parents.append(sum(c[i] * (w_v @ u[j, i]) for i in range(count)))
            else:
                logits = sum(house(attention.keys[j, d]) @ u[j, :, d] for d in range(D)) / D**0.5
                c = entmax15(logits, 0)
                s = sum(c[i] * u[j, i] for i in range(count))
                parents.append(s @ house(attention.turn[j]) * attention.scale)
        images.append(torch.stack(parents))
    return torch.stack(images)


@pytest.mark.parametrize("mode", MODES)
def test_equals_loops_with_gradients(mode: str) -> None:
    attention, votes = layer(mode), some_votes().requires_grad_()
    ours, theirs = attention(votes), slow(attention, votes)
    torch.testing.assert_close(ours, theirs)
    given, by = torch.randn_like(ours), (votes, *attention.parameters())
    for own, other in zip(*(torch.autograd.grad((x * given).sum(), by) for x in (ours, theirs)), strict=True):
        torch.testing.assert_close(own, other)
    assert torch.autograd.gradcheck(attention, votes) and torch.autograd.gradgradcheck(attention, votes)


def test_counts() -> None:
    count = {mode: sum(p.numel() for p in OrthAttention(8, 10, 16, mode).parameters()) for mode in MODES}
    assert count == {"simplified": 16 * 10 * 8 + 16 * 10 + 16, "full": 768}


def test_starts() -> None:
    torch.manual_seed(0)
    simplified, full = OrthAttention(8, 10, 16), OrthAttention(8, 10, 16, "full")
    for vectors, fans in ((simplified.keys, 8 * 16 + 8 * 10), (simplified.turn, 10 + 16)):
        bound = 2**0.5 * (6 / fans) ** 0.5  # Xavier uniform with the gain sqrt(2)
        assert 0.97 * bound < vectors.abs().max() <= bound
    assert (simplified.scale == 1).all()
    assert full.turns.vectors.std().item() == pytest.approx(1, rel=0.1)


@torch.no_grad()
@pytest.mark.parametrize("mode", MODES)
def test_shares_sum_to_one_with_exact_zeros(mode: str) -> None:
    attention, votes = layer(mode), some_votes(8)
    with mereo.record(attention) as trace:
        out = attention(votes)
    couplings = trace["coupling"]
    assert couplings.shape == (8, 1, R, S) and (couplings == 0).any() and (couplings >= 0).all()
    torch.testing.assert_close(couplings.sum(3), torch.ones(8, 1, R, dtype=torch.float64))
    made = (couplings.squeeze(1).unsqueeze(-1) * attention.votes(votes).dense().squeeze(1)).sum(2)
    torch.testing.assert_close(out, made)


@torch.no_grad()
def test_values_keep_all_angles_and_lengths() -> None:
    attention, votes = layer("full"), some_votes(1)
    turned = attention.votes(votes).dense().flatten(0, 3)
    plain = votes.flatten(0, 2)
    torch.testing.assert_close(turned @ turned.T, plain @ plain.T)


@torch.no_grad()
def test_children_are_exchangeable_in_the_full_form() -> None:
    attention, votes = layer("full"), some_votes()
    torch.testing.assert_close(attention(votes[:, :, torch.randperm(S)]), attention(votes))
    torch.testing.assert_close(attention(votes[:, :, :3]), slow(attention, votes[:, :, :3]))
    moved = layer("simplified")(votes.flip(2))
    assert not torch.allclose(moved, layer("simplified")(votes))


@torch.no_grad()
@pytest.mark.parametrize("mode", MODES)
def test_one_child_has_a_share_of_one(mode: str) -> None:
    torch.manual_seed(0)
    attention, votes = OrthAttention(1, R, D, mode), torch.randn(2, R, 1, D)
    with mereo.record(attention) as trace:
        out = attention(votes)
    assert torch.equal(trace["coupling"], torch.ones(2, 1, R, 1))
    torch.testing.assert_close(out, attention.votes(votes).dense()[:, 0, :, 0])


@torch.no_grad()
@pytest.mark.parametrize("mode", MODES)
def test_equal_votes_have_equal_shares_in_the_full_form(mode: str) -> None:
    attention = layer(mode)
    votes = some_votes()[:, :, :1].expand(-1, -1, S, -1)
    with mereo.record(attention) as trace:
        attention(votes)
    if mode == "full":
        torch.testing.assert_close(trace["coupling"], torch.full((2, 1, R, S), 1 / S, dtype=torch.float64))
    assert trace["coupling"].isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("mode", MODES)
def test_masked_children_do_not_exist(mode: str) -> None:
    attention, votes = layer(mode), some_votes()
    mask = torch.tensor([[True, False, True, True, False]] * 2)
    kept = mask[0].nonzero().flatten()
    fewer = layer(mode)
    if mode == "simplified":
        fewer.sizes, fewer.keys.data = (3, R, D), fewer.keys.data[:, :, kept]
    torch.testing.assert_close(attention(votes, mask), fewer(votes[:, :, kept]))
    assert not attention(votes, torch.zeros_like(mask)).any()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_nothing_is_nan(mode: str, dtype: torch.dtype, scale: float) -> None:
    attention = layer(mode).to(dtype)
    votes = (scale * some_votes()).to(dtype).requires_grad_()
    out = attention(votes)
    out.float().sum().backward()
    assert out.dtype == dtype and out.isfinite().all()
    gradients = [x.grad for x in (votes, *attention.parameters())]
    # Products of two votes are beyond the largest number in float16.
    lost = dtype == torch.float16 and scale > 1
    assert all(g is not None and not g.isnan().any() and (lost or g.isfinite().all()) for g in gradients)
    for parameter in attention.parameters():
        parameter.data.zero_()
    assert attention(votes).isfinite().all(), "vectors of zeros reflect nothing"


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="mode is 'half'"):
        OrthAttention(2, 3, 4, "half")
    with pytest.raises(UsageError, match="votes are"):
        layer("simplified")(some_votes()[:, :, :2])
