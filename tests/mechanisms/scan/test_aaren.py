"""Aaren: loops in float64, worked numbers, equal forms, streaming, masks, counts, bad input."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo.core.kernels import prefix_attention_compiled
from mereo.core.kernels.prefix_attention import METHODS, Prefixes, Summary, add, no_tokens, prefixes
from mereo.errors import UsageError
from mereo.mechanisms.scan import Aaren, prefix_attention
from tests.support.compiled import (
    assert_close,
    assert_traceable,
    needs_library,
    same_by_any_number_of_threads,
    use_level,
)

every_form = pytest.mark.parametrize("method", [name for name in METHODS if name != "compiled"])


def naive(scores: Tensor, values: Tensor) -> Tensor:
    """softmax(s[:k]) @ v[:k] for each k."""
    return torch.stack([scores[..., : k + 1].softmax(-1).unsqueeze(-2) @ values[..., : k + 1, :] for k in
                        range(scores.shape[-1])], -3).squeeze(-2)  # fmt: skip


@every_form
def test_worked_numbers(method: str) -> None:
    keys = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]])
    values = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    scores = keys @ torch.tensor([1.0, 0.0]) / 2**0.5
    out = prefix_attention(scores, values, method=method)
    expected = torch.tensor([[1.0, 0.0], [0.6698, 0.3302], [0.8600, 0.7160]])
    torch.testing.assert_close(out, expected, rtol=0, atol=5e-5)
    tops, totals = [], []
    state = no_tokens(scores, values)
    for k in range(3):
        _, state = prefixes(Prefixes(scores[k : k + 1], values[k : k + 1], state), method)
        tops.append(state.top)
        totals.append(state.total)
    torch.testing.assert_close(torch.stack(tops), torch.tensor([0.7071, 0.7071, 1.4142]), rtol=0, atol=5e-5)
    torch.testing.assert_close(torch.stack(totals), torch.tensor([1, 1.4931, 1.7362]), rtol=0, atol=5e-5)


@every_form
@pytest.mark.parametrize(("tokens", "block"), [(13, 1), (13, 3), (13, 13), (1, 4), (40, 8)])
@pytest.mark.parametrize("spread", [1.0, 50.0])
def test_every_prefix_and_its_gradients(method: str, tokens: int, block: int, spread: float) -> None:
    given = [spread * torch.randn(2, 3, tokens, dtype=torch.float64), torch.randn(2, 3, tokens, 5, dtype=torch.float64)]
    weights = torch.randn(2, 3, tokens, 5, dtype=torch.float64)
    results = []
    for form in (naive, lambda s, v: prefix_attention(s, v, method=method, block=block)):
        leaves = [x.clone().requires_grad_() for x in given]
        out = form(*leaves)
        results.append([out, *torch.autograd.grad((out * weights).sum(), leaves)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("tokens", "rounds"), [(1, 0), (2, 1), (13, 4), (16, 4), (17, 5)])
def test_rounds_of_the_doubling_scan(tokens: int, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scores, values, calls = torch.randn(2, tokens), torch.randn(2, tokens, 3), []

    def counted(one: Summary, other: Summary) -> Summary:
        calls.append(1)
        return add(one, other)

    monkeypatch.setattr("mereo.core.kernels.prefix_attention.add", counted)
    prefix_attention(scores, values, method="scan")
    assert len(calls) == rounds + 1, "one more adds what came before the first token"


def test_it_is_causal_softmax_attention_of_one_query() -> None:
    q, k, v = torch.randn(2, 3, 1, 4), torch.randn(2, 3, 17, 4), torch.randn(2, 3, 17, 4)
    expected = F.scaled_dot_product_attention(q.expand_as(k), k, v, is_causal=True)
    scores = (k @ q.transpose(-1, -2)).squeeze(-1) / 2
    torch.testing.assert_close(prefix_attention(scores, v), expected, rtol=1e-5, atol=1e-6)


def test_summaries_add_up_in_any_order() -> None:
    def made() -> Summary:
        return Summary(20 * torch.randn(4, dtype=torch.float64), torch.rand(4, dtype=torch.float64),
                       torch.randn(4, 3, dtype=torch.float64))  # fmt: skip

    a, b, c = made(), made(), made()
    for one, other in itertools.combinations([add(add(a, b), c), add(a, add(b, c)), add(add(c, a), b)], 2):
        for x, y in zip(one, other, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)
    identity = no_tokens(torch.randn(4, 2, dtype=torch.float64), torch.randn(4, 2, 3, dtype=torch.float64))
    for added in (add(identity, a), add(a, identity)):
        assert all(torch.equal(x, y) for x, y in zip(added, a, strict=True))
    assert all(torch.equal(x, y) for x, y in zip(add(identity, identity), identity, strict=True))


@every_form
def test_what_a_constant_equal_scores_and_the_order_change(method: str) -> None:
    scores, values = torch.randn(2, 9, dtype=torch.float64), torch.randn(2, 9, 3, dtype=torch.float64)
    out = prefix_attention(scores, values, method=method)
    torch.testing.assert_close(prefix_attention(scores + 700, values, method=method), out)
    mean = values.cumsum(1) / torch.arange(1, 10, dtype=torch.float64).view(1, -1, 1)
    torch.testing.assert_close(prefix_attention(torch.zeros_like(scores), values, method=method), mean)
    order = torch.tensor([0, 3, 2, 1, 4, 5, 6, 7, 8])
    swapped = prefix_attention(scores[:, order], values[:, order], method=method)
    torch.testing.assert_close(swapped[:, 3:], out[:, 3:])
    torch.testing.assert_close(swapped[:, 0], out[:, 0])


@every_form
def test_tokens_that_are_left_out_change_nothing(method: str) -> None:
    scores, values = torch.randn(7, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64).requires_grad_()
    there = torch.tensor([False, False, True, True, False, True, False])
    out = prefix_attention(scores.masked_fill(~there, -torch.inf), values, method=method)
    kept = prefix_attention(scores[there], values[there], method=method)
    assert (out[:2] == 0).all()
    torch.testing.assert_close(out[2:], kept[[0, 1, 1, 2, 2]])
    (gradient,) = torch.autograd.grad(out.square().sum(), values)
    assert gradient.isfinite().all() and (gradient[~there] == 0).all()


@every_form
def test_the_layer_equals_its_equations(method: str) -> None:
    layer, x = Aaren(12, 3, method=method, block=4).double(), torch.randn(2, 9, 12, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    query, keys, values = layer.to_query(layer.query).view(3, 4), layer.key(x), layer.value(x)
    expected = torch.zeros(2, 9, 12, dtype=torch.float64)
    for b in range(2):
        for k in range(9):
            for h in range(3):
                own = slice(4 * h, 4 * h + 4)
                scores = torch.stack([query[h] @ keys[b, i, own] / 2 for i in range(k + 1)])
                shares = scores.exp() / scores.exp().sum()
                expected[b, k, own] = sum(shares[i] * values[b, i, own] for i in range(k + 1))
    torch.testing.assert_close(layer(x), layer.proj(expected))


def test_tokens_one_by_one_with_a_state_that_does_not_grow() -> None:
    layer, x = Aaren(12, 3).eval(), torch.randn(2, 100, 12)
    whole, state, outputs = layer(x), None, []
    for token in x.unbind(1):
        out, state = layer.step(token, state)
        outputs.append(out)
        assert sum(part.numel() for part in state) == 2 * 3 * (2 + 4)
    torch.testing.assert_close(torch.stack(outputs, 1), whole, rtol=1e-5, atol=1e-6)
    halves, behind = [], None
    with mereo.record(layer) as trace:
        for part in x.split(50, 1):
            out, behind = layer.extend(part, behind)
            halves.append(out)
    torch.testing.assert_close(torch.cat(halves, 1), whole, rtol=1e-5, atol=1e-6)
    assert [c.shape for c in trace.steps("coupling")] == [(2, 3, 50, 50), (2, 3, 50, 51)]


def test_the_difference_to_a_transformer_is_one_token() -> None:
    def count(module: nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    block = nn.TransformerEncoderLayer(512, 8, 2048)
    assert count(block) == 3_152_384
    assert count(block) - count(block.self_attn) + count(Aaren(512, 8)) == 3_152_896


def test_bad_input() -> None:
    for scores, values in [
        (torch.zeros(3), torch.zeros(4, 2)),
        (torch.zeros(()), torch.zeros(2)),
        (torch.zeros(3), torch.zeros(3, 2).double()),
    ]:
        with pytest.raises(UsageError, match="scores are"):
            prefix_attention(scores, values)
    with pytest.raises(UsageError, match="method is 'parallel'"):
        prefix_attention(torch.zeros(3), torch.zeros(3, 2), method="parallel")
    with pytest.raises(UsageError, match="dim is 10 and num_heads 4"):
        Aaren(10, 4)
    for shape in ((2, 0), (0, 5)):
        assert prefix_attention(torch.zeros(shape), torch.zeros(*shape, 3)).shape == (*shape, 3)


def example(shape: tuple[int, ...], dim: int, *, before: bool) -> list[Tensor]:
    """Scores, some of them -inf, values in another order in memory, and the top, total and sums before."""
    torch.manual_seed(0)
    scores, values = 8 * torch.randn(shape), torch.randn(*shape[:-2], shape[-1], shape[-2], dim).transpose(-2, -3)
    scores[..., ::7] = -torch.inf
    if not before:
        return [scores, values, *no_tokens(scores, values)]
    lead = shape[:-1]
    return [scores, values, torch.randn(lead), torch.rand(lead) + 0.5, torch.randn(*lead, dim)]


def everything(tensors: list[Tensor], method: str, *, again: bool = False) -> list[Tensor]:
    """Outputs, the summary behind, and the gradients of all but the top, and gradients of these if asked."""
    scores, values, top, total, sums = (x.detach() for x in tensors)
    leaves = [x.requires_grad_() for x in (scores, values, total, sums)]
    out, last = prefixes(Prefixes(scores, values, Summary(top, total, sums), 8), method)
    weights = torch.linspace(-1, 1, out.numel()).view_as(out).to(out.dtype)
    loss = (out * weights).sum() + last.total.square().sum() + last.values.square().sum()
    first = torch.autograd.grad(loss, leaves, create_graph=again)
    second = torch.autograd.grad(sum(x.square().sum() for x in first), leaves) if again else ()
    return [out, *last, *first, *second]


@needs_library
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(("shape", "dim"), [((2, 3, 70), 20), ((1, 1, 9), 1), ((2, 2, 2, 33), 40)], ids=str)
def test_the_compiled_form(shape: tuple[int, ...], dim: int, before: bool) -> None:
    tensors = example(shape, dim, before=before)
    expected = everything([x.double() for x in tensors], "sequential")
    assert_close(everything(tensors, "compiled"), expected, 2e-6)
    half = [x.bfloat16() for x in tensors[:2]] + tensors[2:]
    found = everything(half, "compiled")
    assert found[0].dtype == torch.bfloat16 and found[1].dtype == torch.float32
    assert_close(found, everything([x.double() for x in half], "sequential"), 2e-2)


@needs_library
@pytest.mark.parametrize("level", range(3))
def test_every_instruction_set_and_number_of_threads(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use_level(monkeypatch, prefix_attention_compiled, level, "_forward", "_gradients")
    tensors = example((2, 3, 3001), 37, before=True)
    once = same_by_any_number_of_threads(lambda: everything(tensors, "compiled"))
    assert_close(once, everything([x.double() for x in tensors], "block"), 1e-5)


@needs_library
def test_second_derivatives_of_the_compiled_form() -> None:
    tensors = example((2, 3, 11), 5, before=True)
    expected = everything([x.double() for x in tensors], "sequential", again=True)
    assert_close(everything(tensors, "compiled", again=True), expected, 1e-4)


@needs_library
def test_compiled_scores_far_apart_and_vectors_without_columns() -> None:
    scores = torch.tensor([-3e4, 5.0, -1e30, 3e4, -torch.inf, 2e38])
    out = prefix_attention(scores, torch.arange(1.0, 7).unsqueeze(-1), method="compiled")
    assert out.flatten().tolist() == [1, 2, 2, 4, 4, 6]
    with pytest.raises(UsageError, match="no numbers"):
        prefix_attention(torch.zeros(3), torch.zeros(3, 0), method="compiled")
    with pytest.raises(UsageError, match=r"float32|compiled library"):
        prefix_attention(torch.zeros(3).double(), torch.zeros(3, 2).double(), method="compiled")


@needs_library
def test_the_operator_is_one_that_pytorch_can_trace() -> None:
    scores, values, *before = example((2, 3, 9), 5, before=True)
    for given in (values, values.contiguous(), values.transpose(-1, -2).contiguous().transpose(-1, -2)):
        leaves = [x.detach().requires_grad_() for x in (scores, given, before[1], before[2])]
        arguments = (*leaves[:2], before[0], *leaves[2:])
        assert_traceable(prefix_attention_compiled.prefixes_compiled, arguments)
