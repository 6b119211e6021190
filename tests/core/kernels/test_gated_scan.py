"""The gated scan: both forms against loops in float64, their gradients, parts of a sequence, and decays of 0."""

import pytest
import torch
from torch import Tensor

from mereo.core.kernels.gated_scan import BLOCK, GatedScan, gated_scan
from mereo.errors import UsageError


def given(tokens: int, rows: int, dim: int = 3, pose: int = 2, heads: int = 2) -> list[Tensor]:
    """q, k, v, logs of decays and a state."""
    q, k = (torch.randn(2, heads, tokens, dim, dtype=torch.float64) for _ in range(2))
    v, logs = torch.randn(2, heads, tokens, pose).double(), -torch.rand(2, heads, tokens, rows).double()
    return [q, k, v, logs, torch.randn(2, heads, dim, pose).double()]


def loops(q: Tensor, k: Tensor, v: Tensor, logs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Number by number, from the equation."""
    out, last = torch.zeros_like(v), torch.zeros_like(state)
    for b in range(len(v)):
        for h in range(v.shape[1]):
            memory = state[b, h]
            for t in range(v.shape[2]):
                memory = logs[b, h, t].exp().view(-1, 1) * memory + torch.outer(k[b, h, t], v[b, h, t])
                out[b, h, t] = q[b, h, t] @ memory
            last[b, h] = memory
    return out, last


FORMS = [("blocks", 1), ("recurrent", 1), ("recurrent", 3)]


@pytest.mark.parametrize(("method", "rows"), FORMS)
@pytest.mark.parametrize("tokens", [1, 7, BLOCK + 5])
def test_outputs_state_and_gradients_are_those_of_loops(method: str, rows: int, tokens: int) -> None:
    results = []
    for form in (loops, lambda *args: gated_scan(GatedScan(*args), method)):
        leaves = [x.requires_grad_() for x in given_again(tokens, rows)]
        out, last = form(*leaves)
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).double()
        gradients = torch.autograd.grad((out * weights).sum() + last.square().sum(), leaves)
        results.append([out, last, *gradients])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def given_again(tokens: int, rows: int) -> list[Tensor]:
    torch.manual_seed(0)
    return given(tokens, rows)


@pytest.mark.parametrize(("method", "rows"), FORMS)
def test_parts_carry_the_state(method: str, rows: int) -> None:
    q, k, v, logs, state = given(90, rows)
    whole, last = gated_scan(GatedScan(q, k, v, logs, state), method)
    parts = []
    for part in (slice(0, 31), slice(31, 90)):
        out, state = gated_scan(GatedScan(*(x[:, :, part] for x in (q, k, v, logs)), state), method)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts, 2), whole)
    torch.testing.assert_close(state, last)


@pytest.mark.parametrize(("method", "rows"), FORMS)
def test_a_decay_of_zero_forgets_and_no_token_changes_nothing(method: str, rows: int) -> None:
    q, k, v, logs, state = given(9, rows)
    logs[:, :, 4] = -torch.inf
    out, _ = gated_scan(GatedScan(q, k, v, logs, state), method)
    alone, _ = gated_scan(GatedScan(q[:, :, 4:], k[:, :, 4:], v[:, :, 4:], logs[:, :, 4:]), method)
    torch.testing.assert_close(out[:, :, 4:], alone)
    empty, kept = gated_scan(GatedScan(*(x[:, :, :0] for x in (q, k, v, logs)), state), method)
    assert empty.shape == (2, 2, 0, 2) and torch.equal(kept, state)


def test_decays_that_differ_in_a_state_have_no_blocks() -> None:
    with pytest.raises(UsageError, match="recurrent"):
        gated_scan(GatedScan(*given(4, 3)), "blocks")
    with pytest.raises(UsageError, match="method"):
        gated_scan(GatedScan(*given(4, 3)), "scan")
