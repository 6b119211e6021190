"""Index feedback: the worked numbers, groups, and columns that change nothing or are alike."""

import math

import pytest
import torch

from mereo.errors import UsageError
from mereo.mechanisms.attention import IndexFeedback


def worked(columns: list[list[float]]) -> IndexFeedback:
    index = IndexFeedback(2, len(columns)).double()
    with torch.no_grad():
        index.columns.copy_(torch.tensor(columns))
    return index


STATE = torch.tensor([[[0.0, math.log(3)]]], dtype=torch.float64)


def close(found: torch.Tensor, expected: list[float], tolerance: float = 5e-5) -> None:
    torch.testing.assert_close(found.flatten(), torch.tensor(expected).double(), rtol=0, atol=tolerance)


def test_worked_numbers() -> None:
    index = worked([[1, 0], [0, 1], [1, 1]])
    close(index.scores(STATE), [0.5, 0.75, 1.25], 1e-12)
    close(index.shares(STATE), [0.2272, 0.2918, 0.4810])
    close(index.feed_back(STATE, torch.tensor([[2]])), [1, 2.0986])
    close(index(STATE), [0.7082, 1.8714])


def test_a_group_competes_alone() -> None:
    torch.manual_seed(0)
    index = IndexFeedback(5, 7, bias=True).double()
    states, group = torch.randn(2, 3, 5).double(), torch.tensor([[False, True, True, False, True, False, False]])
    whole = index.shares(states) * group
    torch.testing.assert_close(index.shares(states, group), whole / whole.sum(-1, keepdim=True))
    assert (index.shares(states, group)[..., ~group[0]] == 0).all()
    span = slice(2, 5)
    part = index.shares(states)[..., span]
    torch.testing.assert_close(index.shares(states, span=span), part / part.sum(-1, keepdim=True))
    torch.testing.assert_close(index.expected(states, part, span), states + part @ index.columns[2:5])


def test_a_zero_column_changes_nothing_and_identical_columns_are_equally_probable() -> None:
    index = worked([[0, 0], [0.3, -2], [0.3, -2]])
    assert torch.equal(index.feed_back(STATE, torch.tensor([[0]])), STATE)
    shares = index.shares(STATE).flatten()
    assert shares[1] == shares[2] and shares[0] != shares[1]


def test_bottom_up_and_top_down_are_the_same_parameters() -> None:
    index = IndexFeedback(4, 3)
    assert [name for name, _ in index.named_parameters()] == ["columns"]
    assert sum(p.numel() for p in IndexFeedback(4, 3, bias=True).parameters()) == 4 * 3 + 3


def test_wrong_states() -> None:
    with pytest.raises(UsageError, match=r"states are \(1, 2, 5\); they must be .batch, states, dim. with dim = 4"):
        IndexFeedback(4, 3)(torch.zeros(1, 2, 5))
    with pytest.raises(UsageError, match="num_concepts is 0"):
        IndexFeedback(4, 0)
