"""The gated scan: its forms against loops in float64, their gradients, parts of a sequence, and decays of 0."""

import pytest
import torch
from torch import Tensor

from mereo.core.kernels import gated_scan_compiled
from mereo.core.kernels.gated_scan import BLOCK, GatedScan, gated_scan
from mereo.errors import UsageError
from tests.support.compiled import (
    assert_close,
    assert_traceable,
    needs_library,
    same_by_any_number_of_threads,
    use_level,
)


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


def one_channel(kind: str, heads: int, tokens: int, dim: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """q, k, v, logs of decays, a state and, for "steps", step sizes: what the compiled form takes."""
    torch.manual_seed(0)
    if kind == "one row":
        q, k, v = (torch.randn(2, heads, tokens, 1) for _ in range(3))
        made = [q, k, v, -3 * torch.rand(2, heads, tokens, 1), torch.randn(2, heads, 1, 1)]
    else:
        q, k, v = *torch.randn(2, 2, 1, tokens, dim), torch.randn(2, tokens, heads, 1).transpose(1, 2)
        made = [q, k, v, -3 * torch.rand(1, heads, 1, dim), torch.randn(2, heads, dim, 1)]
        made.append(torch.rand(2, heads, tokens, 1))
    return [x.to(dtype) for x in made]


def everything(tensors: list[Tensor], method: str, *, again: bool = False) -> list[Tensor]:
    """Outputs, state and gradients, and gradients of these if asked."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    out, last = gated_scan(GatedScan(*leaves), method)
    weights = torch.linspace(-1, 1, out.numel()).view_as(out).to(out.dtype)
    first = torch.autograd.grad((out * weights).sum() + last.square().sum(), leaves, create_graph=again)
    second = torch.autograd.grad(sum(x.square().sum() for x in first), leaves) if again else ()
    return [out, last, *first, *second]


KINDS = [("steps", 20, 70, 5), ("steps", 7, 33, 16), ("steps", 64, 9, 40), ("one row", 33, 70, 1)]


@needs_library
@pytest.mark.parametrize("case", KINDS, ids=str)
def test_the_compiled_form(case: tuple[str, int, int, int]) -> None:
    tensors = one_channel(*case)
    expected = everything([x.double() for x in tensors], "recurrent")
    assert_close(everything(tensors, "compiled"), expected, 1e-6)
    half = [x.bfloat16() for x in tensors]
    found, expected = everything(half, "compiled"), everything([x.double() for x in half], "recurrent")
    assert found[0].dtype == torch.bfloat16 and found[1].dtype == torch.float32
    assert_close(found, expected, 2e-2)


@needs_library
@pytest.mark.parametrize("level", range(3))
def test_every_instruction_set_and_number_of_threads(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use_level(monkeypatch, gated_scan_compiled, level, "_forward", "_gradients")
    tensors = one_channel("steps", 70, 700, 19)
    once = same_by_any_number_of_threads(lambda: everything(tensors, "compiled"))
    assert_close(once, everything([x.double() for x in tensors], "recurrent"), 1e-5)


@needs_library
@pytest.mark.parametrize("case", [("steps", 7, 33, 16), ("one row", 33, 40, 1)], ids=str)
def test_second_derivatives_of_the_compiled_form(case: tuple[str, int, int, int]) -> None:
    tensors = one_channel(*case)
    expected = everything([x.double() for x in tensors], "recurrent", again=True)
    assert_close(everything(tensors, "compiled", again=True), expected, 1e-5)


@needs_library
def test_decays_of_the_compiled_form_from_0_to_more_than_1() -> None:
    q, k, v, logs, state = one_channel("one row", 5, 12, 1)
    logs[:, :, 4], logs[:, :, 8] = -torch.inf, 2.0
    compiled, recurrent = (gated_scan(GatedScan(q, k, v, logs, state), each) for each in ("compiled", "recurrent"))
    torch.testing.assert_close(compiled, recurrent)


def test_what_the_compiled_form_cannot_take() -> None:
    steps = one_channel("steps", 4, 6, 3)
    for tensors, message in (
        (given(6, 3), "2 channels"),
        (given(6, 3, pose=1), "no steps"),
        ([steps[0].expand(2, 4, 6, 3), *steps[1:]], "differ between heads"),
        ([x.double() for x in steps], "float32|compiled library"),
    ):
        with pytest.raises(UsageError, match=message):
            gated_scan(GatedScan(*tensors), "compiled")


@needs_library
@pytest.mark.parametrize("shared", [True, False])
def test_the_operator_is_one_that_pytorch_can_trace(shared: bool) -> None:
    x, w = (torch.randn(2, 20, 9).transpose(1, 2).requires_grad_() for _ in range(2))
    k, q = (torch.randn(2, 5, 9).transpose(1, 2).requires_grad_(shared) for _ in range(2))
    rates, first = torch.rand(20, 5).neg().requires_grad_(), torch.randn(2, 20, 5, requires_grad=True)
    assert_traceable(gated_scan_compiled.scan_compiled, (x, w, rates, k, q, first))
