"""Normalisers against slow references, their gradients, and their behaviour at ties and extremes."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mereo.core import normalisers
from mereo.core.normalisers import NORMALISERS, entmax, entmax15, leaky_softmax, sparsemax, top_k_softmax
from mereo.errors import UsageError

FEW = settings(max_examples=40, deadline=None, database=None, derandomize=True)
rows = st.lists(st.floats(-20, 20), min_size=1, max_size=12)


def bisected(scores: Tensor, alpha: float) -> Tensor:
    """alpha-entmax of one row of float64 numbers, by plain bisection for its threshold."""
    z = (alpha - 1) * scores
    low, high = z.max() - 1, z.max()
    for _ in range(200):
        middle = (low + high) / 2
        total = (z - middle).clamp(min=0).pow(1 / (alpha - 1)).sum()
        low, high = (middle, high) if total > 1 else (low, middle)
    return (z - high).clamp(min=0).pow(1 / (alpha - 1))


@pytest.mark.parametrize(
    ("normalise", "alpha"),
    [(sparsemax, 2.0), (entmax15, 1.5), (partial(entmax, alpha=1.25), 1.25), (partial(entmax, alpha=1.8), 1.8)],
)
@given(row=rows)
@FEW
def test_sparse_normalisers_equal_bisection(normalise: Callable[..., Tensor], alpha: float, row: list[float]) -> None:
    scores = torch.tensor(row, dtype=torch.float64)
    torch.testing.assert_close(normalise(scores, dim=0), bisected(scores, alpha), rtol=1e-7, atol=1e-7)


def test_sparsemax_worked_numbers() -> None:
    torch.testing.assert_close(sparsemax(torch.tensor([1.0, 0.5, -1.0]), 0), torch.tensor([0.75, 0.25, 0.0]))
    assert torch.equal(sparsemax(torch.tensor([3.0, 1.0]), 0), torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("normalise", [sparsemax, entmax15, partial(entmax, alpha=1.3), leaky_softmax])
def test_gradients(normalise: Callable[..., Tensor], dim: int) -> None:
    torch.manual_seed(3)
    scores = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: normalise(s, dim=dim), scores)


@pytest.mark.parametrize("normalise", [sparsemax, entmax15, leaky_softmax])
def test_second_derivatives(normalise: Callable[..., Tensor]) -> None:
    torch.manual_seed(3)
    scores = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda s: normalise(s, dim=1), scores)


@pytest.mark.filterwarnings("ignore:.*jit.script.*:FutureWarning")  # of the first jvp in a process
@pytest.mark.parametrize("normalise", [sparsemax, entmax15, partial(entmax, alpha=1.3), leaky_softmax])
def test_forward_mode(normalise: Callable[..., Tensor]) -> None:
    torch.manual_seed(3)
    scores, direction = torch.randn(2, 3, 5, dtype=torch.float64)
    _, tangent = torch.func.jvp(lambda s: normalise(s, dim=1), (scores,), (direction,))
    jacobian = torch.func.jacrev(lambda s: normalise(s, dim=1))(scores)
    torch.testing.assert_close(tangent, torch.einsum("ijkl,kl->ij", jacobian, direction))


def test_entmax_worked_numbers() -> None:
    scores = torch.tensor([1.0, 0.5, 0.0])
    torch.testing.assert_close(entmax15(scores, 0), torch.tensor([0.624198, 0.291667, 0.084136]), rtol=0, atol=1e-6)
    torch.testing.assert_close(sparsemax(scores, 0), torch.tensor([0.75, 0.25, 0.0]))
    nearly = torch.tensor([0.506480, 0.307196, 0.186324])
    torch.testing.assert_close(entmax(scores.double(), 0, 1 + 1e-6).float(), nearly, rtol=0, atol=2e-6)
    longer = torch.tensor([2.0, 1.0, 0.0, -1.0])
    for made in (entmax15(longer, 0), entmax(longer.double(), 0, 1.5).float()):
        torch.testing.assert_close(made, torch.tensor([0.830719, 0.169281, 0.0, 0.0]), rtol=0, atol=1e-6)
        assert made[2:].tolist() == [0, 0]


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("name", list(NORMALISERS))
def test_dim_is_respected(name: str, dim: int) -> None:
    torch.manual_seed(0)
    scores = torch.randn(3, 4, 5)
    moved = NORMALISERS[name](scores.movedim(dim, -1), -1).movedim(-1, dim)
    torch.testing.assert_close(NORMALISERS[name](scores, dim), moved)


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15"])
@pytest.mark.parametrize("largest", [1e4, 1e30, 3e38])
def test_extreme_scores_stay_finite(name: str, largest: float) -> None:
    scores = torch.tensor([largest, -largest, 0.0, 1.0], requires_grad=True)
    couplings = NORMALISERS[name](scores, 0)
    couplings.square().sum().backward()
    assert couplings.tolist() == [1, 0, 0, 0]
    assert scores.grad is not None and scores.grad.isfinite().all()


def test_leaky_softmax_is_softmax_with_one_zero_score_more() -> None:
    torch.manual_seed(0)
    scores = torch.randn(3, 4)
    padded = torch.cat((torch.zeros(3, 1), scores), 1).softmax(1)[:, 1:]
    torch.testing.assert_close(leaky_softmax(scores, 1), padded)
    torch.testing.assert_close(leaky_softmax(torch.zeros(2, 4), 1), torch.full((2, 4), 0.2))


def test_top_k_with_ties_keeps_exactly_k() -> None:
    couplings = top_k_softmax(torch.tensor([[1.0, 1, 1, 1], [2, 0, 2, 2]]), 1, k=2)
    assert (couplings > 0).sum(1).tolist() == [2, 2]
    torch.testing.assert_close(couplings.sum(1), torch.ones(2))
    assert couplings[1, 1] == 0


def test_top_k_of_more_than_there_are_is_softmax() -> None:
    scores = torch.randn(2, 3)
    torch.testing.assert_close(top_k_softmax(scores, 1, k=9), scores.softmax(1))


@pytest.mark.parametrize("alpha", [1.0, 0.5, 2.1])
def test_entmax_refuses_alpha_without_a_finite_gradient(alpha: float) -> None:
    with pytest.raises(UsageError, match="alpha is"):
        entmax(torch.zeros(3), 0, alpha)


def test_entmax_meets_its_named_members() -> None:
    torch.manual_seed(0)
    scores = torch.randn(4, 9, dtype=torch.float64)
    torch.testing.assert_close(entmax(scores, -1, 1.5), entmax15(scores, -1))
    torch.testing.assert_close(entmax(scores, -1, 2.0), sparsemax(scores, -1))
    torch.testing.assert_close(entmax(scores, -1, 1 + 1e-5), scores.softmax(-1), rtol=1e-4, atol=1e-4)


def test_softmax_along_a_short_last_axis_has_the_same_values_and_gradients():
    scores = torch.randn(40, 100, 9, dtype=torch.float64, requires_grad=True)
    assert normalisers._short(scores, -1) and normalisers._short(scores, 2)
    assert not normalisers._short(scores, 0) and not normalisers._short(scores[:2], -1)
    weights = torch.randn(40, 100, 9, dtype=torch.float64)
    ours, plain = normalisers.softmax(scores, -1), scores.softmax(-1)
    torch.testing.assert_close(ours, plain)
    (gradient,), (expected,) = (torch.autograd.grad((x * weights).sum(), scores) for x in (ours, plain))
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15"])
def test_scores_that_are_not_finite_give_nan_as_softmax_does(name: str, value: float) -> None:
    scores = torch.full((2, 3), value)
    assert NORMALISERS[name](scores, -1).isnan().all()
