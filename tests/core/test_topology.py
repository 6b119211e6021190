"""Topologies: groups of a grid against loops, causal pairs in every execution."""

import pytest
import torch

from mereo.core import Causal, Coupling, Grid, grid_groups, record
from mereo.core.kernels.attention import attend
from mereo.errors import UsageError
from mereo.mechanisms.attention import MultiHeadAttention


@pytest.mark.parametrize(
    ("fine", "coarse"), [((4, 4), (2, 2)), ((6, 4), (2, 2)), ((5, 7), (2, 3)), ((3, 3), (3, 3)), ((8, 2), (1, 1))]
)
def test_groups_equal_loops(fine: tuple[int, int], coarse: tuple[int, int]) -> None:
    q, p = fine[0] // coarse[0], fine[1] // coarse[1]
    groups: list[list[int]] = [[] for _ in range(coarse[0] * coarse[1])]
    for row in range(fine[0]):
        for column in range(fine[1]):
            if row // q < coarse[0] and column // p < coarse[1]:
                groups[row // q * coarse[1] + column // p].append(row * fine[1] + column)
    assert grid_groups(fine, coarse).tolist() == groups


@pytest.mark.parametrize(("fine", "coarse"), [((2, 4), (4, 4)), ((4, 2), (4, 4))])
def test_a_coarse_grid_larger_than_the_fine(fine: tuple[int, int], coarse: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="coarse grid"):
        grid_groups(fine, coarse)


def test_causal_pairs_are_those_up_to_each_receiver() -> None:
    assert Causal().allowed(3, 3).tolist() == [[True, False, False], [True, True, False], [True, True, True]]
    assert Causal().allowed(1, 4).all(), "the newest token hears the whole past"
    assert Causal().restrict(None, 1, 4, torch.device("cpu")) is None
    assert Causal().allowed(2, 4).tolist() == [[True, True, True, False], [True] * 4]
    with pytest.raises(UsageError, match="2 senders for 3 receivers"):
        Causal().allowed(3, 2)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("senders", [5, 7])
def test_causal_attention_in_every_execution(senders: int, masked: bool) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 5, 4), torch.randn(2, 3, senders, 4), torch.randn(2, 3, senders, 6)
    mask = torch.rand(2, 1, 1, senders) > 0.3 if masked else None
    coupling = Coupling("senders", topology=Causal())
    fast, plain = (attend(q, k, v, coupling, mask=mask, method=method) for method in ("sdpa", "plain"))
    torch.testing.assert_close(fast, plain, rtol=1e-5, atol=1e-6)
    scores = (q @ k.transpose(-1, -2) / 2).masked_fill(~Causal().allowed(5, senders), -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    expected = scores.softmax(-1).nan_to_num() @ v
    torch.testing.assert_close(plain, expected, rtol=1e-5, atol=1e-6)


def test_later_tokens_change_nothing_for_earlier_ones() -> None:
    torch.manual_seed(0)
    attention = MultiHeadAttention(12, 3, causal=True).eval()
    tokens = torch.randn(2, 6, 12)
    changed = torch.cat((tokens[:, :4], torch.randn(2, 2, 12)), 1)
    torch.testing.assert_close(attention(tokens)[:, :4], attention(changed)[:, :4])
    with record(attention) as trace:
        attention(tokens)
    (call,) = trace.calls("coupling")
    assert call.topology == Causal() and (call.couplings.triu(1) == 0).all()


def test_grids_one_after_the_other() -> None:
    coarse = Grid(2, 3, 4, 4.0, 8.0)
    fine = Grid(4, 6, 1, 2.0, 4.0, prefix=5, after=coarse)
    assert (coarse.size, fine.size) == (24, 5 + 24 + 24)
    assert fine.parts == [(5, fine._replace(prefix=0, after=None)), (29, coarse)]
    assert coarse.parts == [(0, coarse)]
