"""Lengths and squashing: worked numbers, bounds, and gradients where naive forms break."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mereo.core import DenseVotes, bounded, lengths, squash, squash_exponential

FEW = settings(max_examples=40, deadline=None, database=None, derandomize=True)
SQUASHES = [squash, squash_exponential]


def test_worked_numbers() -> None:
    s = torch.tensor([3.0, 4.0])
    torch.testing.assert_close(squash(s), torch.tensor([0.576923, 0.769231]), rtol=0, atol=1e-6)
    torch.testing.assert_close(lengths(squash(s)), torch.tensor(25 / 26))
    torch.testing.assert_close(squash_exponential(s), torch.tensor([0.595957, 0.794610]), rtol=0, atol=1e-6)
    torch.testing.assert_close(lengths(s), torch.tensor(5.0))


def test_short_vectors_shrink_quadratically_or_stay() -> None:
    s = torch.tensor([3e-4, 4e-4], dtype=torch.float64)
    torch.testing.assert_close(squash(s), s * 5e-4, rtol=1e-6, atol=0)
    torch.testing.assert_close(squash_exponential(s), s * (1 - 2.5e-4), rtol=1e-6, atol=0)


@pytest.mark.parametrize("function", [lengths, *SQUASHES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pose", [1, 8, 512])
@pytest.mark.parametrize("size", [0.0, 1e-20, 1e-8, 1.0, 1e4, 1e18, 1e30])
def test_values_and_gradients_are_finite(
    function: Callable[[Tensor], Tensor], dtype: torch.dtype, pose: int, size: float
) -> None:
    if size * pose**0.5 > torch.finfo(dtype).max:
        size = 1e2
    s = torch.full((3, pose), size, dtype=dtype, requires_grad=True)
    out = function(s)
    out.sum().backward()
    assert s.grad is not None
    assert out.dtype == dtype and out.isfinite().all() and s.grad.isfinite().all()
    if size == 0:
        # The limit, but for the little that keeps the length away from zero.
        slope = 1 if function is squash_exponential else 0
        torch.testing.assert_close(s.grad, torch.full_like(s, slope), rtol=0, atol=1e-6)
    if function is not lengths and size >= 1e4:
        torch.testing.assert_close(lengths(out.double()), torch.ones(3, dtype=torch.float64), rtol=0.02, atol=0)


def test_squash_of_zero_is_zero() -> None:
    for function in SQUASHES:
        assert (function(torch.zeros(2, 4)) == 0).all()


@pytest.mark.parametrize("function", SQUASHES)
@given(
    values=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8),
    other=st.floats(1.01, 10),
)
@FEW
def test_direction_stays_and_length_grows_below_one(
    function: Callable[[Tensor], Tensor], values: list[float], other: float
) -> None:
    s = torch.tensor(values, dtype=torch.float64)
    out, longer = function(s), function(other * s)
    assert lengths(out, eps=0.0) <= 1 + 1e-12
    assert lengths(longer, eps=0.0) >= lengths(out, eps=0.0) - 1e-12
    torch.testing.assert_close(out * lengths(s, eps=0.0), s * lengths(out, eps=0.0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("function", [lengths, *SQUASHES])
def test_gradients(function: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    assert torch.autograd.gradcheck(function, torch.randn(3, 4, dtype=torch.float64, requires_grad=True))


def test_dim_and_keepdim() -> None:
    s = torch.randn(2, 3, 4)
    torch.testing.assert_close(lengths(s, 1), s.norm(dim=1))
    assert lengths(s, 1, keepdim=True).shape == (2, 1, 4)
    torch.testing.assert_close(squash(s, 1), squash(s.transpose(1, 2)).transpose(1, 2))


@pytest.mark.parametrize("function", [lengths, *SQUASHES])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    # Squares of these overflow float16.
    s = (300 * torch.randn(4, 32)).to(dtype)
    assert torch.equal(function(s), function(s.float()).to(dtype))


def test_bounded_keeps_products_of_huge_entries_finite() -> None:
    x = torch.tensor([1e30, -1e30, 3.0, -float("inf")])
    assert bounded(x).tolist() == pytest.approx([1e16, -1e16, 3, -1e16])
    half = torch.tensor([7e4, -2.0]).half()
    assert half[0].isinf() and bounded(half).tolist() == [torch.finfo(torch.float16).max, -2]
    votes = DenseVotes(torch.full((1, 8, 4), 1e30), torch.ones(2, 8, 4, 3))
    parents = squash(votes.combine(torch.ones(1, 1, 2, 8)))
    assert parents.isfinite().all() and votes.agree(parents).isfinite().all()
