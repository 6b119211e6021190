"""Neighbourhood attention: loops in float64, worked numbers, all executions, recording, bad input."""

import inspect
import warnings
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import mereo
from mereo.core import Coupling, Neighborhood
from mereo.core.kernels.exchange import METHODS
from mereo.errors import UsageError
from mereo.mechanisms.attention import NeighborhoodAttention, neighborhood_attention
from tests.support.compiled import needs_library, same_by_any_number_of_threads, use_level

OTHERS = [pytest.param("compiled", marks=needs_library), "tiles", "gathered"]
# grid, window, stride, dilation, causal, heads, dim, pose, keys that everyone attends to
CASES: list[tuple[Any, ...]] = [
    ((9,), 3, 1, 1, False, 2, 5, 3, 0), ((37,), 5, 3, 2, True, 1, 16, 17, 2), ((70,), 9, 1, 1, False, 1, 8, 32, 0),
    ((7, 6), 3, 1, 1, False, 2, 4, 4, 0), ((13, 9), (5, 3), (2, 1), (2, 3), (True, False), 3, 7, 20, 3),
    ((11, 12), (4, 6), (4, 5), 1, False, 2, 33, 1, 0), ((4, 5, 6), 3, 1, 1, (True, False, False), 2, 4, 6, 0),
    ((5, 6, 4), (2, 3, 4), (2, 1, 3), (2, 2, 1), False, 1, 9, 5, 1),
]  # fmt: skip


def example(case: tuple[Any, ...], dtype: torch.dtype = torch.float64, batch: int = 2) -> tuple[Tensor, ...]:
    grid, _, _, _, _, heads, dim, pose, more = case
    shapes = [(batch, *grid, heads, dim)] * 2 + [(batch, *grid, heads, pose)]
    shapes += [(batch, more, heads, dim), (batch, more, heads, pose)] if more else []
    return tuple(torch.randn(shape, dtype=dtype) for shape in shapes)


def biases(case: tuple[Any, ...]) -> Tensor:
    return torch.randn(case[5], *(2 * line.window - 1 for line in Neighborhood(*case[:5]).lines), dtype=torch.float64)


def everything(
    tensors: tuple[Tensor, ...], case: tuple[Any, ...], method: str, bias: Tensor | None = None
) -> list[Tensor]:
    """Output, log of the sums, and all gradients of a weighted sum of both."""
    given = [x.detach().clone().requires_grad_() for x in tensors]
    extra = tuple(given[3:]) or None
    if bias is not None:
        bias = bias.detach().to(given[0].dtype).requires_grad_()
    out, lse = neighborhood_attention(*given[:3], *case[1:5], extra_kv=extra, return_lse=True, bias=bias, method=method)
    given += [] if bias is None else [bias]
    weights = [torch.linspace(-1, 1, x.numel(), dtype=torch.float64).sin().view(x.shape) for x in (out, lse)]
    sum((x.double() * w).sum() for x, w in zip((out, lse), weights, strict=True)).backward()
    return [out, lse, *(x.grad for x in given)]


def assert_close(found: list[Tensor], expected: list[Tensor], share: float) -> None:
    for x, y in zip(found, expected, strict=True):
        assert x.shape == y.shape and (x.double() - y.double()).abs().max() <= share * y.abs().max().clamp(min=1)


def test_loops() -> None:
    case = ((4, 5), (3, 2), 1, (1, 2), (False, True), 2, 3, 4, 2)
    q, k, v, more_k, more_v = example(case, batch=1)
    out, lse = neighborhood_attention(q, k, v, *case[1:5], extra_kv=(more_k, more_v), return_lse=True)
    topology = Neighborhood((4, 5), *case[1:5])
    allowed = topology.allowed(20, 20)
    for i, h in product(range(20), range(2)):
        query = q[0, i // 5, i % 5, h]
        keys = [k[0, j // 5, j % 5, h] for j in range(20) if allowed[i, j]] + list(more_k[0, :, h])
        values = [v[0, j // 5, j % 5, h] for j in range(20) if allowed[i, j]] + list(more_v[0, :, h])
        weights = torch.stack([(query @ key / 3**0.5).exp() for key in keys])
        expected = sum(w * x for w, x in zip(weights, values, strict=True)) / weights.sum()
        torch.testing.assert_close(out[0, i // 5, i % 5, h], expected)
        torch.testing.assert_close(lse[0, i // 5, i % 5, h], weights.sum().log())


@pytest.mark.parametrize("method", [*OTHERS, "dense"])
def test_worked_numbers(method: str) -> None:
    zero, v = torch.zeros(1, 5, 1, 1), torch.tensor([1.0, 2, 4, 8, 16]).view(1, 5, 1, 1)
    out = neighborhood_attention(zero, zero, v, 3, method=method)
    torch.testing.assert_close(out.flatten(), torch.tensor([7 / 3, 7 / 3, 14 / 3, 28 / 3, 28 / 3]))
    out = neighborhood_attention(zero, zero, v, 3, causal=True, method=method)
    torch.testing.assert_close(out.flatten(), torch.tensor([1, 1.5, 7 / 3, 14 / 3, 28 / 3]))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("method", OTHERS)
@pytest.mark.parametrize("biased", [False, True])
def test_outputs_and_gradients_equal_dense_attention(method: str, case: tuple[Any, ...], biased: bool) -> None:
    tensors, bias = example(case), biases(case) if biased else None
    expected = everything(tensors, case, "dense", bias)
    narrow = tuple(x.float() for x in tensors)
    assert_close(everything(narrow, case, method, bias), expected, 3e-6)
    if method != "compiled":
        assert_close(everything(tensors, case, method, bias), expected, 1e-12)


def test_flex_attention_equals_dense_attention() -> None:
    for case in (CASES[4], CASES[7]):
        tensors = example(case, torch.float32)
        extra = tuple(tensors[3:]) or None
        with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is not compiled, which takes half a minute
            results = [
                neighborhood_attention(*tensors[:3], *case[1:5], extra_kv=extra, method=method)
                for method in ("flex", "dense")
            ]
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match=r"'flex'.*log of the sums"):
        neighborhood_attention(*tensors[:3], *case[1:5], return_lse=True, method="flex")


@needs_library
@pytest.mark.parametrize("level", range(3))
def test_every_instruction_set_and_number_of_threads(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from mereo.core.kernels import neighborhood_compiled as compiled

    use_level(monkeypatch, compiled, level, "_forward", "_gradients")
    case = ((45, 14), (5, 7), (1, 2), (1, 2), (True, False), 3, 19, 16, 0)
    tensors = example(case, torch.float32, batch=3)
    for bias in (None, biases(case)):
        once = same_by_any_number_of_threads(partial(everything, tensors, case, "compiled", bias))
        assert_close(once, everything(tuple(x.double() for x in tensors), case, "tiles", bias), 5e-6)


def test_limits() -> None:
    q, k, v = (torch.randn(2, 6, 3, 4) for _ in range(3))
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    for causal in (False, True):
        full = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=causal).transpose(1, 2)
        torch.testing.assert_close(neighborhood_attention(q, k, v, 6, causal=causal), full)
    blocks = [x.unflatten(2, (2, 3)).transpose(1, 2) for x in heads]  # stride = window: windows that do not overlap
    full = torch.nn.functional.scaled_dot_product_attention(*blocks).transpose(1, 2).flatten(2, 3).transpose(1, 2)
    torch.testing.assert_close(neighborhood_attention(q, k, v, 3, stride=3), full)


def test_shifting_the_image_shifts_the_interior_only() -> None:
    q, k, v = (torch.randn(1, 12, 2, 4) for _ in range(3))
    out, moved = (neighborhood_attention(*xs, 3) for xs in ((q, k, v), [x.roll(1, 1) for x in (q, k, v)]))
    torch.testing.assert_close(moved[:, 3:-2], out[:, 2:-3])
    assert not torch.allclose(moved[:, 1], out[:, 0])
    queries = Neighborhood((12,), 3).allowed(12, 12).sum(0)
    assert queries.tolist() == [2, 3, 4, *[3] * 6, 4, 3, 2], "how many see a key depends on the border"


def test_heads_of_keys_may_be_shared() -> None:
    q, k, v = torch.randn(2, 9, 4, 3), torch.randn(2, 9, 2, 3), torch.randn(2, 9, 2, 5)
    expected = neighborhood_attention(q, k.repeat_interleave(2, 2), v.repeat_interleave(2, 2), 3)
    torch.testing.assert_close(neighborhood_attention(q, k, v, 3), expected)
    with pytest.raises(UsageError, match="k has 3 heads and q has 4"):
        neighborhood_attention(q, torch.randn(2, 9, 3, 3), torch.randn(2, 9, 3, 5), 3)


@pytest.mark.parametrize("method", [*OTHERS, "dense"])
def test_a_bias_of_relative_positions(method: str) -> None:
    dtype = torch.float32 if method == "compiled" else torch.float64
    q, k, v = (torch.randn(1, 7, 8, 2, 4, dtype=dtype) for _ in range(3))
    bias = torch.randn(2, 5, 3, dtype=dtype, requires_grad=True)
    out = neighborhood_attention(q, k, v, (3, 2), dilation=(2, 1), bias=bias, method=method)
    allowed = Neighborhood((7, 8), (3, 2), dilation=(2, 1)).allowed(56, 56)
    scores = torch.einsum("nhd,mhd->hnm", *(x.flatten(1, 2)[0] for x in (q, k))) / 2
    rows = []
    for i in range(56):
        added = [
            bias[:, (j // 8 - i // 8) // 2 + 2, j % 8 - i % 8 + 1] if allowed[i, j] else bias.new_full((2,), -torch.inf)
            for j in range(56)
        ]
        rows.append(torch.stack(added, 1))
    weights = (scores + torch.stack(rows, 1)).softmax(-1)
    expected = torch.einsum("hnm,mhd->nhd", weights, v.flatten(1, 2)[0])
    torch.testing.assert_close(out.flatten(1, 2)[0], expected)
    gradients = [torch.autograd.grad(x.sin().sum(), bias, retain_graph=True)[0] for x in (out, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", [*OTHERS, "dense"])
def test_half_precision(method: str, dtype: torch.dtype) -> None:
    tensors = tuple(x.to(dtype) for x in example(CASES[3]))
    expected = everything(tuple(x.double() for x in tensors), CASES[3], "dense")
    found = everything(tensors, CASES[3], method)
    assert found[0].dtype == dtype and {x.dtype for x in found[2:]} == {dtype}
    assert_close(found, expected, 0.02 if dtype == torch.float16 else 0.06)


def test_autocast() -> None:
    module, tokens = NeighborhoodAttention(8, 2, window=3), torch.randn(2, 5, 6, 8)
    expected = module(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        out = module(tokens)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, rtol=0.05, atol=0.02 * expected.abs().max().item())


@pytest.mark.parametrize("method", OTHERS)
def test_extreme_inputs_give_finite_outputs(method: str) -> None:
    for size in (0.0, 1e-30, 1e15):
        q, k, v = (size * torch.randn(1, 5, 4, 1, 3) for _ in range(3))
        assert neighborhood_attention(q, k, v, 3, method=method).isfinite().all()


@pytest.mark.parametrize("method", [*OTHERS, "dense"])
def test_scores_that_are_no_numbers_stay_in_their_image(method: str) -> None:
    q, k, v = (torch.randn(3, 6, 6, 1, 3) for _ in range(3))
    bias = torch.randn(1, 5, 5)
    plain = neighborhood_attention(q, k, v, 3, bias=bias, method=method)
    k[0, 0, 0], q[1, 3, 3] = torch.nan, torch.inf
    out = neighborhood_attention(q, k, v, 3, bias=bias, method=method)
    assert torch.equal(out[2], plain[2]) and out[0, 0, 0].isnan().all()


@pytest.mark.parametrize("method", OTHERS)
def test_empty_batches(method: str) -> None:
    tensors = example(CASES[4], torch.float32, batch=0)
    found = everything(tensors, CASES[4], method)
    assert found[0].shape == (0, 13, 9, 3, 20) and all(x.numel() == 0 for x in found)


@pytest.mark.long
def test_tiles_in_a_compiled_graph() -> None:
    module = NeighborhoodAttention(8, 2, window=3, axes=1, causal=True).double()
    tokens = torch.randn(2, 37, 8, dtype=torch.float64)
    torch.compiler.reset()
    results = []
    for run in (module, torch.compile(module, fullgraph=True, backend="aot_eager")):
        given = tokens.clone().requires_grad_()
        out = run(given)
        (gradient,) = torch.autograd.grad(out.sin().sum(), given)
        results.append((out, gradient))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


@needs_library
def test_second_derivatives_of_the_compiled_way() -> None:
    tensors = tuple(x.requires_grad_() for x in (*example(CASES[0], torch.float32), biases(CASES[0]).float()))

    def of_gradients(method: str) -> list[Tensor]:
        out = neighborhood_attention(*tensors[:3], 3, bias=tensors[3], method=method)
        first = torch.autograd.grad(out.square().sum(), tensors, create_graph=True)
        return list(torch.autograd.grad(sum(x.square().sum() for x in first), tensors))

    for method in ("compiled", "tiles"):
        assert_close(of_gradients(method), of_gradients("dense"), 1e-5)


def test_couplings_are_recorded_over_all_tokens() -> None:
    module, tokens = NeighborhoodAttention(8, 2, window=3, dilation=(1, 2)).eval(), torch.randn(2, 5, 7, 8)
    plain = module(tokens)
    with mereo.record(module) as trace:
        torch.testing.assert_close(module(tokens), plain)
    couplings = trace["coupling"]
    allowed = Neighborhood((5, 7), 3, dilation=(1, 2)).allowed(35, 35)
    assert couplings.shape == (2, 2, 35, 35) and torch.equal(couplings > 0, allowed.expand_as(couplings))
    torch.testing.assert_close(couplings.sum(-1), torch.ones(2, 2, 35))
    v = module.qkv(tokens)[..., 16:].reshape(2, 35, 2, 4).transpose(1, 2)
    torch.testing.assert_close(module.proj((couplings @ v).transpose(1, 2).flatten(2)).view_as(plain), plain)
    with mereo.intervene(module, {"coupling": torch.zeros_like}):
        torch.testing.assert_close(module(tokens), module.proj.bias.expand_as(plain))


def test_large_maps_are_recorded_as_sparse_tensors() -> None:
    module, tokens = NeighborhoodAttention(2, 1, window=3, causal=(True, False)).eval(), torch.randn(1, 64, 64, 2)
    with mereo.record(module) as trace:
        module(tokens)
    couplings = trace["coupling"]
    assert couplings.is_sparse and couplings.shape == (1, 1, 4096, 4096)
    assert couplings._nnz() == (64 * 3 - 3) * 64 * 3
    torch.testing.assert_close(couplings.sum(-1).to_dense(), torch.ones(1, 1, 4096))


@pytest.mark.parametrize("grid", [(5,), (4, 9), (2, 3, 7)])
def test_windows_that_a_grid_does_not_hold_are_clipped_where_wanted(grid: tuple[int, ...]) -> None:
    axes = len(grid)
    module = NeighborhoodAttention(8, 2, window=5, dilation=2, axes=axes, position_bias=True, clip=True).eval()
    tokens = torch.randn(2, *grid, 8)
    fitting = [min(5, side) for side in grid]
    dilation = [min(2, side // window) for side, window in zip(grid, fitting, strict=True)]
    exact = NeighborhoodAttention(8, 2, window=fitting, dilation=dilation, axes=axes, position_bias=True).eval()
    state = module.state_dict()
    inner = tuple(slice(5 - window, 4 + window) for window in fitting)
    exact.load_state_dict({**state, "position_bias": state["position_bias"][(slice(None), *inner)]})
    assert torch.equal(module(tokens), exact(tokens))


def test_dropout_of_couplings() -> None:
    module, tokens = NeighborhoodAttention(8, 2, window=3, attn_drop=0.5), torch.randn(2, 5, 6, 8)
    torch.manual_seed(0)
    assert not torch.equal(module(tokens), module(tokens))
    assert torch.equal(module.eval()(tokens), module(tokens))


def test_parameters_and_forms() -> None:
    module = NeighborhoodAttention(32, 4, window=(2, 3, 3), axes=3)
    assert sum(p.numel() for p in module.parameters()) == 4 * 32**2 + 4 * 32 == 4224
    assert module(torch.randn(1, 2, 3, 4, 32)).shape == (1, 2, 3, 4, 32)
    with_bias = NeighborhoodAttention(8, 2, window=3, position_bias=True).eval()
    tokens = torch.randn(1, 5, 6, 8)
    assert with_bias.position_bias.shape == (2, 5, 5)
    plain = with_bias(tokens)
    with mereo.record(with_bias):
        torch.testing.assert_close(with_bias(tokens), plain)
    assert inspect.unwrap(mereo.neighborhood_attention) is inspect.unwrap(neighborhood_attention)
    assert "window=(3, 3)" in repr(with_bias) and set(METHODS) == {"compiled", "tiles", "gathered", "flex", "dense"}


@pytest.mark.parametrize("method", ["auto", "tiles", "gathered"])
def test_other_normalisers(method: str) -> None:
    q, k, v = (torch.randn(1, 9, 1, 4) for _ in range(3))
    coupling = Coupling("senders", "sparsemax")
    out = neighborhood_attention(q, k, v, 3, coupling=coupling, method=method)
    torch.testing.assert_close(out, neighborhood_attention(q, k, v, 3, coupling=coupling, method="dense"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: neighborhood_attention(x, x, x, 7), r"window is 7.*6 tokens; possible windows: 2 to 6"),
        (lambda x: neighborhood_attention(x[0, 0], x[0, 0], x[0, 0], 3), r"q has 3 axes"),
        (lambda x: neighborhood_attention(x, x[:, :4], x, 3), r"batch and grid must agree"),
        (lambda x: neighborhood_attention(x, x, x.double(), 3), r"one type"),
        (lambda x: neighborhood_attention(x, x, x, 3, method="tile"), r"Did you mean 'tiles'"),
        (lambda x: neighborhood_attention(x, x, x, 3, bias=x), r"bias is .*\(2, 5, 5\)"),
        (lambda x: neighborhood_attention(x, x, x, 3, extra_kv=(x[:, 0], x[:1, 0])), r"extra_kv"),
        (lambda x: NeighborhoodAttention(8, 3), r"dim must be a multiple"),
        (lambda x: NeighborhoodAttention(8, 2, axes=4), r"axes is 4"),
        (lambda x: NeighborhoodAttention(8, 2, window=1), r"window is 1"),
        (lambda x: NeighborhoodAttention(8, 2, window=3, stride=5), r"stride is 5"),
        (lambda x: NeighborhoodAttention(4, 2, window=3, axes=1)(x[..., 0, :]), r"it must have 3"),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(torch.randn(2, 6, 6, 2, 4))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x[..., :0], "dim of 0"),
        (lambda x: (x * 10).long(), "int64"),
        (lambda x: x * 1j, "complex"),
    ],
)
def test_queries_that_are_no_real_vectors(change: Any, said: str) -> None:
    q, k, v = (change(torch.randn(1, 5, 5, 2, 4)) for _ in range(3))
    with pytest.raises(UsageError, match=said):
        neighborhood_attention(q, k, v, 3)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), "1"])
def test_a_scale_that_is_no_finite_number(scale: Any) -> None:
    q = torch.randn(1, 5, 5, 2, 4)
    with pytest.raises(UsageError, match="scale is"):
        neighborhood_attention(q, q, q, 3, scale=scale)
