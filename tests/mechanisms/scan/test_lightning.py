"""Lightning attention: loops in float64, worked numbers, equal forms, streaming, the mixer, bad input."""

import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mereo
from mereo.core.kernels.linear_scan import METHODS
from mereo.errors import UsageError
from mereo.mechanisms.scan import LightningAttention, decay_slopes, lightning_attention
from mereo.mechanisms.scan.lightning import LinearizedPositions, simple_rms_norm
from tests.support.compiled import assert_close, needs_library, same_by_any_number_of_threads, use_level

FORMS = [pytest.param("compiled", marks=needs_library), "chunked", "parallel", "recurrent"]
every_form = pytest.mark.parametrize("method", FORMS)
# batch, heads, tokens, dim, pose, block, whether there is a state before
CASES = [
    (2, 3, 37, 5, 7, 5, True),
    (1, 2, 37, 16, 64, 16, False),
    (2, 4, 100, 33, 20, 64, True),
    (1, 1, 1, 3, 2, 4, True),
]
SLOPES = (0.0, 0.3, 2.0, float("inf"))


def example(case: tuple[Any, ...], dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], Tensor, int]:
    batch, heads, tokens, dim, pose, block, continued = case
    shapes = [(batch, heads, tokens, x) for x in (dim, dim, pose)] + [(batch, heads, dim, pose)] * continued
    return [torch.randn(x, dtype=dtype) for x in shapes], torch.tensor(SLOPES[:heads], dtype=dtype), block


def everything(tensors: list[Tensor], slopes: Tensor, block: int, method: str) -> list[Tensor]:
    given = [x.detach().clone().requires_grad_() for x in tensors]
    state = given[3] if len(given) > 3 else None
    results = lightning_attention(*given[:3], slopes, block, state, True, method=method)
    weights = [torch.linspace(-1, 1, x.numel(), dtype=torch.float64).sin().view(x.shape) for x in results]
    sum((x.double() * w).sum() for x, w in zip(results, weights, strict=True)).backward()
    return [*results, *(x.grad for x in given)]


@every_form
def test_worked_numbers(method: str) -> None:
    q, k, v = (torch.tensor(x).view(1, 1, 3, 1) for x in ([1.0, 2, 1], [1.0, 1, 2], [1.0, 10, 100]))
    slopes = {torch.tensor(0.5).log().neg(): (1, 21, 205.25), torch.tensor(0.0): (1, 22, 211)}
    slopes |= {torch.tensor(torch.inf): (1, 20, 200)}  # each token itself
    for slope, expected in slopes.items():
        out = lightning_attention(q, k, v, slope.view(1), method=method)
        torch.testing.assert_close(out.flatten(), torch.tensor(expected, dtype=torch.float32))


def test_loops() -> None:
    (q, k, v), slopes, _ = example((2, 3, 9, 4, 5, 4, False))
    out = lightning_attention(q, k, v, slopes, 4)
    for b in range(2):
        for h in range(3):
            for t in range(9):
                read = sum((q[b, h, t] @ k[b, h, s]) * (-slopes[h] * (t - s)).exp() * v[b, h, s] for s in range(t + 1))
                torch.testing.assert_close(out[b, h, t], read)


@pytest.mark.parametrize("case", CASES, ids=str)
@every_form
def test_outputs_states_and_gradients_are_those_of_the_recurrence(method: str, case: tuple[Any, ...]) -> None:
    tensors, slopes, block = example(case)
    expected = everything(tensors, slopes, block, "recurrent")
    narrow = [x.float() for x in tensors]
    assert_close(everything(narrow, slopes.float(), block, method), expected, 2e-6)
    if method != "compiled":
        assert_close(everything(tensors, slopes, block, method), expected, 1e-13)


@needs_library
@pytest.mark.parametrize("level", range(3))
def test_every_instruction_set_and_number_of_threads(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from mereo.core.kernels import linear_scan_compiled as compiled

    use_level(monkeypatch, compiled, level, "_run")
    tensors, slopes, block = example((1, 2, 3001, 19, 70, 64, True), torch.float32)
    tensors[2] = tensors[2].transpose(1, 2).contiguous().transpose(1, 2)  # tokens need not be dense
    once = same_by_any_number_of_threads(lambda: everything(tensors, slopes, block, "compiled"))
    assert_close(once, everything([x.double() for x in tensors], slopes.double(), block, "chunked"), 1e-5)


@every_form
def test_a_sequence_in_two_calls(method: str) -> None:
    (q, k, v), slopes, block = example((2, 3, 37, 4, 5, 8, False), torch.float32)
    whole, last = lightning_attention(q, k, v, slopes, block, return_state=True, method=method)
    state, parts = None, []
    for here in (slice(0, 11), slice(11, 37), slice(37, 37)):
        given = (x[:, :, here] for x in (q, k, v))
        part, state = lightning_attention(*given, slopes, block, state, True, method=method)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, last, rtol=1e-5, atol=1e-5)


def test_segments_of_blocks() -> None:
    (q, k, v), slopes, _ = example((1, 2, 4200, 2, 3, 64, False))
    torch.testing.assert_close(
        lightning_attention(q, k, v, slopes, method="chunked"), lightning_attention(q, k, v, slopes, method="recurrent")
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@every_form
def test_half_precision(method: str, dtype: torch.dtype) -> None:
    tensors, slopes, block = example((1, 2, 40, 8, 8, 16, True))
    tensors = [x.to(dtype) for x in tensors]
    found = everything(tensors, slopes.float(), block, method)
    assert found[0].dtype == dtype and found[1].dtype == torch.float32
    expected = everything([x.double() for x in tensors], slopes, block, "recurrent")
    assert_close(found, expected, 2e-3 if dtype == torch.float16 else 2e-2)


@every_form
def test_empty_batches_and_sequences(method: str) -> None:
    for case in ((0, 2, 9, 3, 4, 4, True), (2, 2, 0, 3, 4, 4, True)):
        tensors, slopes, block = example(case, torch.float32)
        found = everything(tensors, slopes, block, method)
        assert found[0].shape == (*case[:3], 4)
        torch.testing.assert_close(found[1], tensors[3] if case[2] == 0 else found[1])


@needs_library
def test_second_derivatives_of_the_compiled_form() -> None:
    tensors, slopes, block = example((1, 2, 20, 3, 4, 8, False), torch.float32)
    tensors = [x.requires_grad_() for x in tensors]

    def of_gradients(method: str) -> list[Tensor]:
        out = lightning_attention(*tensors, slopes, block, method=method)
        first = torch.autograd.grad(out.square().sum(), tensors, create_graph=True)
        return list(torch.autograd.grad(sum(x.square().sum() for x in first), tensors))

    assert_close(of_gradients("compiled"), of_gradients("recurrent"), 1e-5)


def test_slopes_may_be_learned() -> None:
    (q, k, v), _, block = example((1, 2, 20, 3, 4, 8, False))
    slopes = torch.tensor([0.2, 0.7], dtype=torch.float64, requires_grad=True)
    gradients = []
    for method in ("auto", "recurrent"):
        out = lightning_attention(q, k, v, slopes, block, method=method)
        gradients.append(torch.autograd.grad(out.sin().sum(), slopes)[0])
    torch.testing.assert_close(*gradients)


def test_slopes() -> None:
    assert decay_slopes(4) == [0.25, 0.0625, 0.015625, 0.00390625]
    assert decay_slopes(8) == [2.0**-h for h in range(1, 9)]
    more = [round(x, 4) for x in decay_slopes(12)]
    assert more[:8] == [round(2.0**-h, 4) for h in range(1, 9)] and more[8:] == [0.7071, 0.3536, 0.1768, 0.0884]
    factors = [decay_slopes(1, layer=layer, num_layers=3)[0] * 256 for layer in range(3)]
    assert factors == pytest.approx([1.00001, 0.50001, 0.00001])
    assert decay_slopes(2, "paper", 1, 4) == [3.0, 6.0] and decay_slopes(2, "none") == [0.0, 0.0]


def test_positions_turn_products_into_cosines() -> None:
    positions = LinearizedPositions(2, 3)
    torch.testing.assert_close(positions.theta.flatten(), 10000 ** (-2 * torch.arange(6) / 6))
    q, k = torch.randn(1, 2, 5, 3), torch.randn(1, 2, 5, 3)
    products = positions(q) @ positions(k).transpose(-1, -2)
    for t in range(5):
        for s in range(5):
            cosines = (positions.theta[:, 0] * (t - s)).cos()
            torch.testing.assert_close(products[0, :, t, s], (q[0, :, t] * k[0, :, s] * cosines).sum(-1))
    torch.testing.assert_close(positions(q[:, :, 2:], 2), positions(q)[:, :, 2:])


def test_simple_rms_norm() -> None:
    torch.testing.assert_close(
        simple_rms_norm(torch.tensor([3.0, 4.0])), torch.tensor([0.8485, 1.1314]), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("positions", [False, True])
def test_the_mixer_equals_its_equations_and_streams(positions: bool) -> None:
    torch.manual_seed(0)
    module = LightningAttention(8, 2, inner=12, layer=1, num_layers=3, positions=positions, block=4).double()
    tokens = torch.randn(2, 9, 8, dtype=torch.float64)
    q, k, v, u = F.linear(tokens, module.qkvu.weight).chunk(4, -1)
    heads = [x.unflatten(-1, (2, 6)).transpose(1, 2) for x in (F.silu(q), F.silu(k), v)]
    if positions:
        heads[:2] = [module.positions(x) for x in heads[:2]]
    t = torch.arange(9)
    decays = [(-slope * (t[:, None] - t).clamp(min=0)).exp().tril() for slope in module.slopes()]
    mixed = ((heads[0] @ heads[1].transpose(-1, -2)) * torch.stack(decays)) @ heads[2]
    mixed = mixed.transpose(1, 2).flatten(2)
    expected = module.proj(mixed / (mixed.square().mean(-1, keepdim=True) + 1e-6).sqrt() * u)
    torch.testing.assert_close(module(tokens), expected)
    first, state = module.extend(tokens[:, :5])
    size = state.memory.shape
    rest = []
    for token in tokens[:, 5:].unbind(1):
        out, state = module.step(token, state)
        rest.append(out)
    torch.testing.assert_close(torch.cat((first, torch.stack(rest, 1)), 1), expected)
    assert state.memory.shape == size and state.position == 9
    assert sum(p.numel() for p in module.parameters()) == 5 * 8 * 12 + 12 * positions


def test_states_are_recorded() -> None:
    module, tokens = LightningAttention(8, 2, block=4).eval(), torch.randn(3, 10, 8)
    with mereo.record(module) as trace:
        out = module(tokens)
    torch.testing.assert_close(out, module(tokens))
    states = trace["states"]
    assert states.shape == (3, 2, 3, 4, 4) and not states[:, :, 0].any()
    torch.testing.assert_close(states[:, :, 2], module.extend(tokens[:, :8])[1].memory)


def test_slopes_may_be_a_list() -> None:
    q = torch.randn(1, 2, 5, 4)
    assert torch.equal(lightning_attention(q, q, q, [0.5, 0.1]), lightning_attention(q, q, q, torch.tensor([0.5, 0.1])))


def streamed(*tokens: torch.Tensor) -> None:
    module, state = LightningAttention(8, 2).eval(), None
    for token in tokens:
        _, state = module.step(token, state)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q, s: lightning_attention(q, q[:, :, :3], q, s), "q as k"),
        (lambda q, s: lightning_attention(q, q, q, s[:1]), r"must be \(2,\)"),
        (lambda q, s: lightning_attention(q, q, q, -s), "at least 0"),
        (lambda q, s: lightning_attention(q, q, q, s * torch.nan), "at least 0"),
        (lambda q, s: lightning_attention(q, q, q, s, 0), "block is 0"),
        (lambda q, s: lightning_attention(q, q, q, s, state=q), "state is"),
        (lambda q, s: lightning_attention(q, q, q.double(), s), "one type"),
        (lambda q, s: lightning_attention(q, q, q, s, method="chunk"), "Did you mean 'chunked'"),
        (lambda q, s: LightningAttention(8, 3), "multiple of num_heads"),
        (lambda q, s: LightningAttention(8, 2).step(q), r"must be \(batch, tokens, dim\)"),
        (lambda q, s: streamed(torch.randn(2, 8), torch.randn(1, 8)), "1 samples, and the state of 2"),
        (lambda q, s: LightningAttention(8, 2, decay="alib"), "Did you mean 'alibi'"),
        (lambda q, s: LightningAttention(8, 2, layer=2, num_layers=2), "layer is 2"),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(torch.randn(1, 2, 5, 4), torch.tensor([0.5, 0.1]))


def test_names() -> None:
    assert inspect.unwrap(mereo.lightning_attention) is inspect.unwrap(lightning_attention)
    assert set(METHODS) == {"compiled", "chunked", "parallel", "recurrent"}
