"""Coupling: the axis, masks, temperature, dropout, precision and wrong arguments."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mereo.core import Coupling
from mereo.core.coupling import AXIS
from mereo.core.normalisers import NORMALISERS, SUM_TO_ONE
from mereo.errors import UsageError

FEW = settings(max_examples=25, deadline=None, database=None, derandomize=True)
OVER = ["senders", "receivers"]
ALL = [*NORMALISERS, "top_k"]


def coupling(over: Any, normaliser: str, **options: Any) -> Coupling:
    return Coupling(over, normaliser, top_k=2 if normaliser == "top_k" else None, **options)


@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("normaliser", sorted(SUM_TO_ONE))
@given(receivers=st.integers(1, 6), senders=st.integers(1, 6), scale=st.floats(0, 100), seed=st.integers(0, 1000))
@FEW
def test_couplings_sum_to_one_along_over(
    over: str, normaliser: str, receivers: int, senders: int, scale: float, seed: int
) -> None:
    torch.manual_seed(seed)
    couplings = coupling(over, normaliser)(scale * torch.randn(2, 3, receivers, senders))
    assert couplings.shape == (2, 3, receivers, senders) and (couplings >= 0).all()
    sums = couplings.sum(AXIS[over])
    torch.testing.assert_close(sums, torch.ones_like(sums))


@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("normaliser", ALL)
def test_masked_pairs_get_zero_and_leave_the_rest_as_if_absent(over: str, normaliser: str) -> None:
    torch.manual_seed(0)
    make = coupling(over, normaliser)
    scores = torch.randn(2, 1, 5, 5)
    mask = torch.ones(5, 5, dtype=torch.bool)
    keep = [0, 2, 3]
    if over == "senders":
        mask[:, [1, 4]] = False
        expected = make(scores[..., keep])
        got = make(scores, mask)[..., keep]
    else:
        mask[[1, 4]] = False
        expected = make(scores[..., keep, :])
        got = make(scores, mask)[..., keep, :]
    torch.testing.assert_close(got, expected)
    assert (make(scores, mask)[..., ~mask] == 0).all()


@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("normaliser", ALL)
def test_fully_masked_lines_are_zero_with_finite_gradients(over: str, normaliser: str) -> None:
    scores = torch.randn(2, 1, 3, 3, requires_grad=True)
    mask = torch.ones(3, 3, dtype=torch.bool)
    line = (slice(None), slice(None), 1) if over == "senders" else (slice(None), slice(None), slice(None), 1)
    mask[line[2:]] = False
    couplings = coupling(over, normaliser)(scores, mask)
    couplings.square().sum().backward()
    assert scores.grad is not None and scores.grad.isfinite().all()
    assert (couplings[line] == 0).all() and (scores.grad[line] == 0).all()
    if normaliser in SUM_TO_ONE:
        others = couplings.sum(AXIS[over])[..., [0, 2]]
        torch.testing.assert_close(others, torch.ones_like(others))


@pytest.mark.parametrize("normaliser", ALL)
def test_masked_scores_may_be_anything(normaliser: str) -> None:
    scores = torch.tensor([[[[1.0, 2.0, float("inf"), float("nan")]]]])
    mask = torch.tensor([True, True, False, False])
    couplings = coupling("senders", normaliser)(scores, mask)
    torch.testing.assert_close(couplings[..., :2], coupling("senders", normaliser)(scores[..., :2]))


def test_temperature_divides_the_scores() -> None:
    scores = torch.randn(2, 1, 3, 4)
    torch.testing.assert_close(Coupling("senders", temperature=0.5)(scores), (2 * scores).softmax(-1))


def test_dropout_acts_only_in_training() -> None:
    torch.manual_seed(0)
    scores = torch.randn(2, 1, 16, 16)
    module = Coupling("receivers", dropout=0.5)
    dropped = module.train()(scores)
    share = (dropped == 0).float().mean()
    assert 0.3 < share < 0.7
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * scores.softmax(-2)[kept])
    assert torch.equal(module.eval()(scores), Coupling("receivers")(scores))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("normaliser", sorted(SUM_TO_ONE))
def test_half_precision_accumulates_in_float32(normaliser: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    scores = (3 * torch.randn(1, 1, 2, 32)).to(dtype)
    make = coupling("senders", normaliser)
    got, expected = make(scores), make(scores.float())
    assert got.dtype == dtype
    # Rounded once, at the end.
    assert torch.equal(got, expected.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("normaliser", sorted(SUM_TO_ONE))
def test_scores_that_overflowed_half_precision_win_or_lose(normaliser: str, dtype: torch.dtype) -> None:
    infinity = float("inf")
    scores = torch.tensor([[infinity, 3.0, -infinity, infinity], [-infinity] * 4, [-infinity, 1.0, -infinity, -900.0]])
    couplings = coupling("senders", normaliser)(scores.to(dtype)[None, None])[0, 0]
    assert couplings[0].tolist() == [0.5, 0, 0, 0.5]
    assert couplings[1].sum() == 1
    assert couplings[2].tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"over": "sender"}, "over is 'sender'"),
        ({"normaliser": "softmaks"}, "normaliser is 'softmaks'"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"dropout": -0.1}, "dropout is -0.1"),
        ({"normaliser": "top_k"}, "top_k is None"),
        ({"top_k": 3}, "top_k is 3 with normaliser 'softmax'"),
        ({"normaliser": "top_k", "top_k": 0}, "top_k is 0"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Coupling(**({"over": "senders"} | arguments))


def test_what_fused_attention_may_replace() -> None:
    assert Coupling("senders", dropout=0.1).is_plain_softmax
    for other in (Coupling("receivers"), Coupling("senders", "sparsemax"), Coupling("senders", temperature=2.0)):
        assert not other.is_plain_softmax


def test_repr_names_what_differs_from_the_default() -> None:
    assert repr(Coupling("senders")) == "Coupling(over='senders', normaliser='softmax')"
    assert "top_k=3" in repr(Coupling("senders", "top_k", top_k=3, dropout=0.5))


def test_over_both_all_pairs_share_one_sum() -> None:
    torch.manual_seed(0)
    scores, mask = torch.randn(2, 3, 4, 5), torch.rand(2, 1, 4, 5) > 0.3
    couplings = Coupling("both")(scores, mask)
    torch.testing.assert_close(couplings.sum((-2, -1)), torch.ones(2, 3))
    assert (couplings[~mask.expand_as(couplings)] == 0).all()
    torch.testing.assert_close(Coupling("both")(scores), scores.flatten(2).softmax(-1).view_as(scores))


def test_over_none_each_score_stands_for_itself() -> None:
    scores = torch.randn(2, 1, 4, 5)
    torch.testing.assert_close(Coupling("none", "sigmoid")(scores), scores.sigmoid())
    with pytest.raises(UsageError, match="over is 'none'"):
        Coupling("none", "softmax")


def test_offset_and_weight_are_part_of_the_couplings() -> None:
    scores, offset, weight = torch.randn(2, 1, 4, 5), torch.randn(4, 5), torch.rand(2, 1, 1, 5)
    couplings = Coupling("receivers")(scores, offset=offset, weight=weight)
    torch.testing.assert_close(couplings, (scores.softmax(-2) + offset) * weight)
