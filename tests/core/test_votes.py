"""Votes: combine and agree are sums over the dense tensor, and adjoint to each other."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mereo.core import DenseVotes, GivenVotes, JoinedVotes, MatrixVotes, SameVotes, SharedVotes, Votes

KINDS = ["dense", "stored", "shared", "matrix", "same", "joined", "given"]
FEW = settings(max_examples=30, deadline=None, database=None, derandomize=True)
sizes = st.integers(1, 6)


def make(kind: str, batch: int, heads: int, receivers: int, senders: int, pose: int) -> tuple[Votes, int]:
    """Votes of a kind in float64, and how many heads they have."""
    if kind == "dense":
        weight = torch.randn(receivers, senders, 3, pose, dtype=torch.float64)
        return DenseVotes(torch.randn(batch, senders, 3, dtype=torch.float64), weight), 1
    if kind == "matrix":
        weight = torch.randn(receivers, senders, 3, pose, dtype=torch.float64)
        return MatrixVotes(torch.randn(batch, senders, 2, 3, dtype=torch.float64), weight), 1
    if kind == "stored":
        weight = torch.randn(receivers, senders, 3, pose, dtype=torch.float64)
        return DenseVotes(torch.randn(batch, senders, 3, dtype=torch.float64), weight, method="stored"), 1
    if kind == "given":
        return GivenVotes(torch.randn(batch, heads, receivers, senders, pose, dtype=torch.float64)), heads
    if kind == "joined":
        counts = (senders - senders // 2, senders // 2)
        parts = [make(k, batch, 1, receivers, n, pose)[0] for k, n in zip(("dense", "shared"), counts, strict=True)]
        return JoinedVotes(parts, counts), 1
    if kind == "shared":
        weight = torch.randn(receivers, 3, pose, dtype=torch.float64)
        return SharedVotes(torch.randn(batch, senders, 3, dtype=torch.float64), weight), 1
    if kind == "given":
        return GivenVotes(torch.randn(batch, heads, receivers, senders, pose, dtype=torch.float64)), heads
    return SameVotes(torch.randn(batch, heads, senders, pose, dtype=torch.float64)), heads


@pytest.mark.parametrize("kind", KINDS)
@given(batch=sizes, heads=sizes, receivers=sizes, senders=sizes, pose=sizes, seed=st.integers(0, 1000))
@FEW
def test_combine_and_agree_are_adjoint(
    kind: str, batch: int, heads: int, receivers: int, senders: int, pose: int, seed: int
) -> None:
    torch.manual_seed(seed)
    votes, heads = make(kind, batch, heads, receivers, senders, pose)
    couplings = torch.randn(batch, heads, receivers, senders, dtype=torch.float64)
    parents = torch.randn(batch, heads, receivers, votes.dense().shape[-1], dtype=torch.float64)
    left = (votes.combine(couplings) * parents).sum()
    right = (couplings * votes.agree(parents)).sum()
    torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_verbs_equal_loops_over_the_dense_votes(kind: str) -> None:
    torch.manual_seed(0)
    B, P, R, S, D = 2, 3, 4, 5, 6
    votes, P = make(kind, B, P, R, S, D)
    couplings = torch.randn(B, P, R, S, dtype=torch.float64)
    D = votes.dense().shape[-1]
    parents = torch.randn(B, P, R, D, dtype=torch.float64)
    dense = votes.dense().expand(B, P, R, S, D)
    combined, agreed = torch.zeros(B, P, R, D, dtype=torch.float64), torch.zeros(B, P, R, S, dtype=torch.float64)
    for b in range(B):
        for h in range(P):
            for r in range(R):
                for s in range(S):
                    combined[b, h, r] += couplings[b, h, r, s] * dense[b, h, r, s]
                    agreed[b, h, r, s] = parents[b, h, r].dot(dense[b, h, r, s])
    torch.testing.assert_close(votes.combine(couplings), combined)
    torch.testing.assert_close(votes.agree(parents), agreed)


def test_dense_votes_transform_each_pair_by_its_own_matrix() -> None:
    torch.manual_seed(0)
    senders, weight = torch.randn(2, 5, 3), torch.randn(4, 5, 3, 6)
    dense = DenseVotes(senders, weight).dense()
    assert dense.shape == (2, 1, 4, 5, 6)
    for b, r, s in torch.cartesian_prod(torch.arange(2), torch.arange(4), torch.arange(5)).tolist():
        torch.testing.assert_close(dense[b, 0, r, s], weight[r, s].T @ senders[b, s])


def test_shared_votes_are_dense_votes_with_repeated_matrices() -> None:
    torch.manual_seed(0)
    senders, weight = torch.randn(2, 5, 3), torch.randn(4, 3, 6)
    dense = DenseVotes(senders, weight.unsqueeze(1).expand(-1, 5, -1, -1))
    torch.testing.assert_close(SharedVotes(senders, weight).dense(), dense.dense())


def test_same_votes_have_one_receiver_axis() -> None:
    values = torch.randn(2, 3, 5, 6)
    dense = SameVotes(values).dense()
    assert dense.shape == (2, 3, 1, 5, 6)
    assert torch.equal(dense[:, :, 0], values)


@pytest.mark.parametrize("kind", KINDS)
def test_selected_votes_are_those_of_the_pairs(kind: str) -> None:
    torch.manual_seed(0)
    votes, heads = make(kind, 3, 2, 4, 5, 6)
    samples, receivers = torch.tensor([2, 0, 2]), torch.tensor([1, 3, 0])
    dense = votes.dense().expand(3, heads, 4, 5, -1)
    expected = torch.stack([dense[b, :, r] for b, r in zip(samples, receivers, strict=True)])
    torch.testing.assert_close(votes.select(samples, receivers), expected)


def test_matrix_votes_are_products_of_matrices() -> None:
    torch.manual_seed(0)
    poses, weight = torch.randn(2, 5, 4, 4), torch.randn(3, 5, 4, 4)
    dense = MatrixVotes(poses, weight).dense()
    assert dense.shape == (2, 1, 3, 5, 16)
    for b, r, s in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(5)).tolist():
        torch.testing.assert_close(dense[b, 0, r, s].view(4, 4), poses[b, s] @ weight[r, s])


def test_making_votes_computes_nothing() -> None:
    huge = torch.empty(1, device="meta").expand(1 << 20, 1 << 20, 8, 16)
    votes = DenseVotes(torch.empty(1, device="meta").expand(1 << 20, 1 << 20, 8), huge)
    assert votes._stored is None and votes.streams
