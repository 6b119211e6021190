"""CLEAR: loops in float64, worked numbers, all executions, symmetries, recording, bad input."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import mereo
from mereo.core import Circle, Coupling
from mereo.core.kernels.exchange import METHODS
from mereo.errors import UsageError
from mereo.mechanisms.attention import ClearAttention, clear_attention
from mereo.mechanisms.attention.local.clear import block_sums, length_scale, mean_weight
from tests.support.compiled import needs_library, use_level

OTHERS = [pytest.param("compiled", marks=needs_library), "tiles"]
# grid, radius, text tokens, down factor, heads, dim, pose
CASES: list[tuple[Any, ...]] = [
    ((4, 4), 2, 0, None, 1, 4, 4), ((9, 7), 3, 3, None, 2, 5, 3), ((8, 12), 2.5, 4, 4, 2, 16, 17),
    ((19, 5), 4, 2, None, 1, 33, 1), ((1, 40), 6, 1, 1, 1, 8, 8), ((30, 1), 6, 0, None, 3, 7, 20),
    ((20, 18), 50, 5, 2, 1, 9, 5), ((33, 20), 5, 0, None, 2, 4, 4),
]  # fmt: skip


def example(case: tuple[Any, ...], dtype: torch.dtype = torch.float64, batch: int = 2) -> tuple[Tensor, ...]:
    grid, _, text, factor, heads, dim, pose = case
    tokens = text + grid[0] * grid[1]
    tensors = [torch.randn(batch, heads, tokens, size, dtype=dtype) for size in (dim, dim, pose)]
    return (*tensors, *([torch.randn(factor, factor, dtype=dtype)] if factor else []))


def everything(tensors: tuple[Tensor, ...], case: tuple[Any, ...], method: str) -> list[Tensor]:
    """Output, and all gradients of a weighted sum of it."""
    given = [x.detach().clone().requires_grad_() for x in tensors]
    down = given[3] if len(given) > 3 else None
    out = clear_attention(*given[:3], *case[:2], text_tokens=case[2], down_weight=down, method=method)
    weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).sin().view(out.shape)
    (out.double() * weights).sum().backward()
    return [out, *(x.grad for x in given)]


def assert_close(results: list[Tensor], expected: list[Tensor], share: float) -> None:
    for x, y in zip(results, expected, strict=True):
        assert x.shape == y.shape and (x.double() - y.double()).abs().max() <= share * y.abs().max().clamp(min=1)


def test_loops() -> None:
    q, k, v, down = example(((4, 6), 2.5, 2, 2, 2, 3, 4), batch=1)
    out = clear_attention(q, k, v, (4, 6), 2.5, text_tokens=2, down_weight=down)
    for h in range(2):
        keys, values = list(k[0, h]), list(v[0, h])
        for x, row in ((k, keys), (v, values)):
            for y0 in range(0, 4, 2):
                for x0 in range(0, 6, 2):
                    cells = [(i, j, 2 + (y0 + i) * 6 + x0 + j) for i in range(2) for j in range(2)]
                    row.append(sum(down[i, j] * x[0, h, n] for i, j, n in cells))
        for r in range(26):
            if r < 2:
                seen = list(range(26))
            else:
                y, x = divmod(r - 2, 6)
                near = [s for s in range(2, 26) if (y - (s - 2) // 6) ** 2 + (x - (s - 2) % 6) ** 2 < 6.25]
                seen = [0, 1, *near, *range(26, 32)]
            weights = torch.stack([(q[0, h, r] @ keys[s] / 3**0.5).exp() for s in seen])
            expected = sum(w * values[s] for w, s in zip(weights, seen, strict=True)) / weights.sum()
            torch.testing.assert_close(out[0, h, r], expected)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("method", OTHERS)
def test_outputs_and_gradients_equal_dense_attention(method: str, case: tuple[Any, ...]) -> None:
    tensors = example(case)
    expected = everything(tensors, case, "dense")
    narrow = tuple(x.float() for x in tensors)
    assert_close(everything(narrow, case, method), expected, 3e-6)
    if method != "compiled":
        assert_close(everything(tensors, case, method), expected, 1e-12)


def test_flex_attention_equals_dense_attention() -> None:
    case = ((16, 12), 3, 4, 4, 2, 16, 16)
    q, k, v, down = example(case, torch.float32)
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not compiled, which takes half a minute
        results = [
            clear_attention(q, k, v, *case[:2], text_tokens=4, down_weight=down, method=method)
            for method in ("flex", "dense")
        ]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match=r"'flex'.*no gradients on a CPU"):
        clear_attention(q.requires_grad_(), k, v, *case[:2], text_tokens=4, down_weight=down, method="flex")


@needs_library
@pytest.mark.parametrize("level", range(3))
def test_every_instruction_set_and_number_of_threads(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from mereo.core.kernels import circle_compiled as compiled

    use_level(monkeypatch, compiled, level, "_forward", "_gradients")
    case = ((45, 34), 3, 19, None, 3, 19, 16)
    tensors = example(case, torch.float32)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        once = everything(tensors, case, "compiled")
        assert_close(once, everything(tuple(x.double() for x in tensors), case, "tiles"), 5e-6)
        torch.set_num_threads(3)
        assert torch.equal(everything(tensors, case, "compiled")[0], once[0])
    finally:
        torch.set_num_threads(before)


def test_limits() -> None:
    q, k, v = (torch.randn(2, 3, 2 + 20, 4) for _ in range(3))
    out = clear_attention(q, k, v, (4, 5), 5.001, text_tokens=2)
    torch.testing.assert_close(out, scaled_dot_product_attention(q, k, v))
    torch.testing.assert_close(clear_attention(q, k, v, (11, 2), 1), v)
    out = clear_attention(q, k, v, (4, 5), 2, text_tokens=2)
    torch.testing.assert_close(out[:, :, :2], scaled_dot_product_attention(q[:, :, :2], k, v))


@pytest.mark.parametrize("method", [*OTHERS, "dense"])
def test_what_is_farther_than_the_radius_changes_nothing(method: str) -> None:
    q, k, v = (torch.randn(1, 1, 3 + 100, 4) for _ in range(3))
    plain = clear_attention(q, k, v, (10, 10), 3, text_tokens=3, method=method)
    k[:, :, 3 + 44], v[:, :, 3 + 44] = 10.0, 10.0
    changed = (clear_attention(q, k, v, (10, 10), 3, text_tokens=3, method=method) != plain).any(-1)[0, 0, 3:]
    near = Circle((10, 10), 3).near()[44]
    assert not changed[~near].any() and changed[near].all()


def test_turning_the_image_turns_the_output() -> None:
    q, k, v = (torch.randn(1, 2, 2 + 30, 4, dtype=torch.float64) for _ in range(3))

    def turned(x: Tensor, change: Any, rows: int, columns: int) -> Tensor:
        image = change(x[:, :, 2:].unflatten(2, (rows, columns)))
        return torch.cat((x[:, :, :2], image.flatten(2, 3)), 2)

    out = clear_attention(q, k, v, (5, 6), 2.5, text_tokens=2)
    for change, grid in ((lambda x: x.rot90(1, (2, 3)), (6, 5)), (lambda x: x.flip(3), (5, 6))):
        given = [turned(x, change, 5, 6) for x in (q, k, v)]
        torch.testing.assert_close(clear_attention(*given, grid, 2.5, text_tokens=2), turned(out, change, 5, 6))


def test_blocks_start_as_means() -> None:
    x = torch.arange(24.0).view(1, 1, 24, 1)
    assert block_sums(x, (4, 6), mean_weight(2)).flatten().tolist() == [3.5, 5.5, 7.5, 15.5, 17.5, 19.5]
    module = ClearAttention(8, 2, grid=(4, 4), radius=2, down_factor=4)
    assert module.down_weight.shape == (4, 4) and torch.equal(module.down_weight, torch.full((4, 4), 1 / 16))
    module(torch.randn(1, 16, 8)).sum().backward()
    assert module.down_weight.grad.abs().sum() > 0


def test_the_scale_of_longer_sequences() -> None:
    assert length_scale(4608, 4608, 64) == 1 / 8
    assert length_scale(4608**2, 4608, 64) == pytest.approx(2**0.5 / 8)
    assert length_scale(4608, 46080, 1, factor=10) == pytest.approx(1)
    short, long = (ClearAttention(8, 2, grid=(4, 4), radius=2, trained_tokens=trained) for trained in (None, 16**2))
    long.load_state_dict(short.state_dict())
    assert short.scale is None and long.scale == pytest.approx(0.5**0.5 / 2)
    tokens = torch.randn(1, 16, 8)
    assert not torch.allclose(long(tokens), short(tokens))
    with pytest.raises(UsageError, match="trained is 1"):
        length_scale(10, 1, 4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", [*OTHERS, "dense"])
def test_half_precision(method: str, dtype: torch.dtype) -> None:
    tensors = tuple(x.to(dtype) for x in example(CASES[1]))
    expected = everything(tuple(x.double() for x in tensors), CASES[1], "dense")
    results = everything(tensors, CASES[1], method)
    assert {x.dtype for x in results} == {dtype}
    assert_close(results, expected, 0.02 if dtype == torch.float16 else 0.06)


@pytest.mark.parametrize("method", OTHERS)
def test_extreme_inputs_give_finite_outputs(method: str) -> None:
    for size in (0.0, 1e-30, 1e15):
        q, k, v = (size * torch.randn(1, 1, 22, 3) for _ in range(3))
        assert clear_attention(q, k, v, (5, 4), 2, text_tokens=2, method=method).isfinite().all()


@pytest.mark.parametrize("method", OTHERS)
def test_empty_batches(method: str) -> None:
    results = everything(example(CASES[1], torch.float32, batch=0), CASES[1], method)
    assert results[0].shape == (0, 2, 66, 3) and all(x.numel() == 0 for x in results)


@needs_library
def test_second_derivatives_of_the_compiled_way() -> None:
    tensors = tuple(x.requires_grad_() for x in example(CASES[1], torch.float32))

    def of_gradients(method: str) -> list[Tensor]:
        out = clear_attention(*tensors, (9, 7), 3, text_tokens=3, method=method)
        first = torch.autograd.grad(out.square().sum(), tensors, create_graph=True)
        return list(torch.autograd.grad(sum(x.square().sum() for x in first), tensors))

    for method in ("compiled", "tiles"):
        assert_close(of_gradients(method), of_gradients("dense"), 1e-5)


def test_tiles_in_a_compiled_graph() -> None:
    module = ClearAttention(8, 2, grid=(9, 11), radius=3, text_tokens=1).double()
    tokens = torch.randn(2, 100, 8, dtype=torch.float64)
    torch.compiler.reset()
    results = []
    for run in (module, torch.compile(module, fullgraph=True, backend="aot_eager")):
        given = tokens.clone().requires_grad_()
        out = run(given)
        results.append((out, *torch.autograd.grad(out.sin().sum(), given)))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


def test_couplings_are_recorded_over_all_tokens() -> None:
    module = ClearAttention(8, 2, grid=(9, 10), radius=2.5, text_tokens=3, down_factor=1).eval()
    tokens = torch.randn(2, 93, 8)
    plain = module(tokens)
    with mereo.record(module) as trace:
        torch.testing.assert_close(module(tokens), plain)
    image, text = trace["coupling"], trace["text_coupling"]
    allowed = module.topology.allowed(93, 183)
    assert image.shape == (2, 2, 90, 183) and torch.equal(image > 0, allowed[3:].expand_as(image))
    assert text.shape == (2, 2, 3, 93)
    torch.testing.assert_close(image.sum(-1), torch.ones(2, 2, 90))
    v = module.qkv(tokens)[..., 16:].unflatten(-1, (2, 4)).transpose(1, 2)
    blocks = torch.cat((v, block_sums(v[:, :, 3:], (9, 10), module.down_weight)), 2)
    expected = module.proj(torch.cat((text @ v, image @ blocks), 2).transpose(1, 2).flatten(2))
    torch.testing.assert_close(plain, expected)
    with mereo.intervene(module, {"coupling": torch.zeros_like, "text_coupling": torch.zeros_like}):
        torch.testing.assert_close(module(tokens), module.proj.bias.expand_as(plain))


def test_large_maps_are_recorded_as_sparse_tensors() -> None:
    module, tokens = ClearAttention(2, 1, grid=(64, 64), radius=2, text_tokens=2).eval(), torch.randn(5, 4098, 2)
    with mereo.record(module) as trace:
        module(tokens)
    couplings = trace["coupling"]
    assert couplings.is_sparse and couplings.shape == (5, 1, 4096, 4098)
    assert (couplings.values() > 0).sum() == 5 * (4096 * 2 + module.topology.image_pairs)
    torch.testing.assert_close(couplings.sum(-1).to_dense(), torch.ones(5, 1, 4096))


def test_dropout_and_other_normalisers() -> None:
    module, tokens = ClearAttention(8, 2, grid=(5, 6), radius=2, attn_drop=0.5), torch.randn(2, 30, 8)
    torch.manual_seed(0)
    assert not torch.equal(module(tokens), module(tokens))
    assert torch.equal(module.eval()(tokens), module(tokens))
    q, k, v = (torch.randn(1, 1, 30, 4) for _ in range(3))
    coupling = Coupling("senders", "sparsemax")
    results = [clear_attention(q, k, v, (5, 6), 2, coupling=coupling, method=method) for method in ("auto", "dense")]
    torch.testing.assert_close(*results)
    with pytest.raises(UsageError, match=r"method is 'flex'.*sparsemax"):
        clear_attention(q, k, v, (5, 6), 2, coupling=coupling, method="flex")


def test_parameters_and_names() -> None:
    module = ClearAttention(32, 4, grid=(4, 4), radius=2, down_factor=4)
    assert sum(p.numel() for p in module.parameters()) == 4 * 32**2 + 4 * 32 + 16
    assert "radius=2" in repr(module) and set(METHODS) == {"compiled", "tiles", "gathered", "flex", "dense"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: clear_attention(x, x, x, (4, 5), 2, text_tokens=1), r"20 tokens.*which are 21"),
        (lambda x: clear_attention(x, x[:, :, 1:], x, (4, 5), 2), r"k is .*same batch, heads and tokens"),
        (lambda x: clear_attention(x[0], x[0], x[0], (4, 5), 2), r"\(batch, heads, tokens, dim\)"),
        (lambda x: clear_attention(x, x, x.double(), (4, 5), 2), r"v is torch.float64"),
        (lambda x: clear_attention(x, x, x, (4, 5), 2, method="tile"), r"Did you mean 'tiles'"),
        (lambda x: clear_attention(x, x, x, (4, 5), 2, down_weight=mean_weight(2)), r"down_factor is 2.*\[1\]"),
        (lambda x: clear_attention(x, x, x, (4, 5), 2, down_weight=torch.ones(2, 1)), r"must be square"),
        (lambda x: ClearAttention(8, 3, grid=(4, 4)), r"dim must be a multiple"),
        (lambda x: ClearAttention(8, 2, grid=(4, 4), radius=-1), r"radius is -1"),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(torch.randn(2, 2, 20, 4))
