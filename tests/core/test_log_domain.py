"""Sums of exponentials: values, masks, extremes, gradients."""

import math

import pytest
import torch

from mereo.core import log_mean_exp, masked_logsumexp


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_masked_logsumexp_is_the_sum_over_unmasked_entries(dim: int) -> None:
    torch.manual_seed(0)
    x, mask = torch.randn(4, 5, dtype=torch.float64), torch.rand(4, 5) < 0.7
    mask[0] = mask[:, 0] = True
    expected = (x.exp() * mask).sum(dim).log()
    torch.testing.assert_close(masked_logsumexp(x, dim, mask), expected)
    count = mask.sum(dim)
    torch.testing.assert_close(log_mean_exp(x, dim, mask), expected - count.log())


def test_without_a_mask() -> None:
    x = torch.randn(4, 5, dtype=torch.float64)
    torch.testing.assert_close(masked_logsumexp(x, 1), x.exp().sum(1).log())
    torch.testing.assert_close(log_mean_exp(x, 1), x.exp().mean(1).log())


def test_mask_broadcasts() -> None:
    x, mask = torch.randn(2, 3, 4), torch.tensor([True, False, True, True])
    torch.testing.assert_close(masked_logsumexp(x, -1, mask), x[..., mask].logsumexp(-1))
    torch.testing.assert_close(log_mean_exp(x, -1, mask), x[..., mask].logsumexp(-1) - math.log(3))


def test_every_entry_is_masked() -> None:
    for function in (masked_logsumexp, log_mean_exp):
        x = torch.randn(2, 3, requires_grad=True)
        out = function(x, 1, torch.tensor([[False], [True]]))
        assert out[0] == -math.inf and out[1].isfinite()
        out[1].backward()
        assert x.grad is not None and x.grad.isfinite().all() and (x.grad[0] == 0).all()
        out = function(x, 1, torch.zeros(2, 3, dtype=torch.bool))
        x.grad = None
        out.sum().backward()
        assert (x.grad == 0).all()


def test_large_numbers_do_not_overflow() -> None:
    x = torch.tensor([1e4, 1e4, -1e4])
    torch.testing.assert_close(log_mean_exp(x, 0), torch.tensor(1e4 + math.log(2 / 3)))
    torch.testing.assert_close(masked_logsumexp(x, 0, torch.tensor([True, False, True])), torch.tensor(1e4))
