"""Capsule dropout: whole capsules, the expectation, no effect in evaluation."""

import pytest
import torch

from mereo.errors import UsageError
from mereo.layers.capsules import CapsuleDropout


def test_leaves_out_whole_capsules_and_scales_the_others() -> None:
    torch.manual_seed(0)
    capsules = torch.rand(8, 50, 3) + 1
    factors = CapsuleDropout(0.25)(capsules) / capsules
    assert torch.allclose(factors[..., 0], factors[..., 1]) and torch.allclose(factors[..., 0], factors[..., 2])
    torch.testing.assert_close(factors[factors != 0], torch.full_like(factors[factors != 0], 4 / 3))
    assert (factors == 0).double().mean().item() == pytest.approx(0.25, abs=0.06)
    assert not torch.equal(factors[0], factors[1]), "every image draws its own"


def test_keeps_the_expectation() -> None:
    torch.manual_seed(0)
    capsules = torch.randn(1, 6, 2)
    mean = CapsuleDropout(0.3)(capsules.expand(40_000, -1, -1)).mean(0)
    torch.testing.assert_close(mean, capsules[0], rtol=0.03, atol=0.01)


def test_rate_0_and_evaluation_change_nothing() -> None:
    capsules = torch.randn(2, 6, 2)
    assert torch.equal(CapsuleDropout(0.0)(capsules), capsules)
    assert torch.equal(CapsuleDropout(0.5).eval()(capsules), capsules)
    with pytest.raises(UsageError, match="rate is 1"):
        CapsuleDropout(1.0)
