"""Multi-head attention over several processes: against the dense module, in every mode; couplings; names."""

import pytest
import torch

import sharded_checks as checks
from mereo.errors import UsageError
from mereo.mechanisms.attention import MultiHeadAttention, ShardedAttention
from processes import in_processes, needs_gloo


@needs_gloo
@pytest.mark.parametrize("size", [2, 4])
def test_outputs_and_summed_gradients_are_those_of_one_process(size: int) -> None:
    for found in in_processes(size, checks.modules, size == 2):
        assert len(found) == 4
        assert all(error < 1e-12 and gradient < 1e-10 for error, gradient in found.values()), found


@pytest.mark.long
@needs_gloo
def test_what_is_sent_with_heads_and_what_is_recorded() -> None:
    results = in_processes(2, checks.sums_and_couplings)
    for sent, found in results:
        assert sent == 2 * 2 * 16 * 32 * 1 // 2
        assert max(max(couplings, output) for couplings, output, _ in found) < 1e-12
    assert [shape for _, _, shape in results[0][1]] == [[2, 4, 5, 11]] * 2, "one process watches"


def test_one_process_is_multi_head_attention() -> None:
    dense, sharded = MultiHeadAttention(12, 3, causal=True), ShardedAttention(12, 3, causal=True)
    sharded.load_state_dict(dense.state_dict())
    tokens = torch.randn(2, 5, 12)
    torch.testing.assert_close(sharded(tokens), dense(tokens))
    for name in ("ring", "heads"):
        sharded.mode = name
        torch.testing.assert_close(sharded(tokens), dense(tokens))


def test_bad_input() -> None:
    with pytest.raises(UsageError, match="mode is 'star'"):
        ShardedAttention(12, 3, mode="star")
    with pytest.raises(UsageError, match="layout is 'spiral'"):
        ShardedAttention(12, 3, layout="spiral")
    sharded = ShardedAttention(12, 3, group="world")
    with pytest.raises(UsageError, match="group is a str"):
        sharded(torch.zeros(1, 2, 12))
