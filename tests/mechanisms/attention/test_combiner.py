"""Combiner against loops over tokens and regions, and numbers worked by hand."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.attention import CombinerAttention, combiner_attention
from mereo.mechanisms.attention.sparse.plans import (
    PLANS,
    AxialHorizontal,
    AxialMixture,
    AxialRowMajor,
    AxialVertical,
    Fixed,
    Learned,
    LogSparse,
)

IDS = torch.tensor([0, 2, 1, 1, 0, 3, 1, 0, 1, 2, 0])


def regions_of(plan: Any, i: int, tokens: int, causal: bool) -> tuple[list[int], list[list[int]]]:
    """Direct tokens and regions of token i, from the definitions."""
    seen = range(i + 1) if causal else range(tokens)
    if isinstance(plan, Fixed):
        label = [n // plan.size for n in range(tokens)]
    elif isinstance(plan, Learned):
        label = plan.regions.tolist()
    elif isinstance(plan, LogSparse):
        whole = 1 << (tokens - 1).bit_length()
        regions = []
        for number, order in ((i, lambda n: n), (whole - 1 - i, lambda n: whole - 1 - n)):
            start = 0
            for bit in reversed(range(12)):
                if number >> bit & 1:
                    regions.append([order(n) for n in range(start, start + (1 << bit))])
                    start += 1 << bit
        kept = [[n for n in region if n in seen] for region in regions]
        return [i], [region for region in kept if region]
    else:
        m = plan.columns
        row, column = divmod(i, m)
        rows = -(-tokens // m)
        direct = [n for n in seen if n // m == row or n % m == column]
        others = [r for r in range(rows) if (r < row if causal else r != row)]
        if isinstance(plan, AxialVertical):
            regions = [[r * m + c for r in others] for c in range(m) if c != column]
        else:
            regions = [[r * m + c for c in half] for r in others for half in (range(column), range(column + 1, m))]
        kept = [[n for n in region if n < tokens] for region in regions]
        return direct, [region for region in kept if region]
    direct = [n for n in seen if label[n] == label[i]]
    rest = [[n for n in seen if label[n] == other] for other in sorted(set(label) - {label[i]})]
    return direct, [region for region in rest if region]


def lines(plan: Any, q: Tensor, k: Tensor, i: int, causal: bool, pool: str) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Each item of the joint softmax: its score, and the share of every token in it."""
    tokens, dim = q.shape
    one = torch.eye(tokens, dtype=q.dtype)

    def pooled(x: Tensor) -> Tensor:
        return x.amax(0) if pool == "max" else x.mean(0)

    if isinstance(plan, AxialRowMajor):
        m, row, column = plan.columns, i // plan.columns, i % plan.columns
        for j in range(row * m, min(i + 1 if causal else (row + 1) * m, tokens)):
            yield q[i] @ k[j] / dim**0.5, one[j]
        for r in range(-(-tokens // m)):
            if r < row if causal else r != row:
                members = [n for n in range(r * m, (r + 1) * m) if n < tokens]
                at = r * m + column
                reader = q[at] if at < tokens else torch.zeros_like(q[0])
                share = (k[members] @ reader / dim**0.5).softmax(0)
                yield q[i] @ pooled(k[members]) / dim**0.5, share @ one[members]
        return
    direct, regions = regions_of(plan, i, tokens, causal)
    for j in direct:
        yield q[i] @ k[j] / dim**0.5, one[j]
    for members in regions:
        share = (k[members] @ pooled(q[members]) / dim**0.5).softmax(0)
        yield q[i] @ pooled(k[members]) / dim**0.5, share @ one[members]


def by_loops(plan: Any, q: Tensor, k: Tensor, causal: bool, pool: str = "max") -> Tensor:
    """p(j | i), token by token: (batch, heads, tokens, tokens)."""
    if isinstance(plan, AxialMixture):
        parts = [by_loops(kind(plan.columns), q, k, causal, pool) for kind in (AxialVertical, AxialHorizontal)]
        return (parts[0] + parts[1]) / 2
    images = []
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            rows = []
            for i in range(q.shape[2]):
                scores, shares = zip(*lines(plan, q[b, h], k[b, h], i, causal, pool), strict=True)
                rows.append(torch.stack(scores).softmax(0) @ torch.stack(shares))
            images.append(torch.stack(rows))
    return torch.stack(images).unflatten(0, q.shape[:2])


def inputs(tokens: int = 11, dim: int = 4) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 2, tokens, dim, dtype=torch.float64, requires_grad=True) for _ in range(3)]


AXIAL = [kind(columns) for kind in (AxialVertical, AxialHorizontal, AxialRowMajor, AxialMixture) for columns in (3, 4)]
EVERY = [Fixed(3), Fixed(4), LogSparse(), Learned(IDS), *AXIAL]


@pytest.mark.parametrize("plan", EVERY, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("pool", ["max", "mean"])
def test_equals_the_loops(plan: Any, causal: bool, pool: str) -> None:
    q, k, v = inputs()
    expected = by_loops(plan, q, k, causal, pool)
    out, probs = combiner_attention(q, k, v, plan, causal, pool, return_probs=True)
    torch.testing.assert_close(probs, expected)
    torch.testing.assert_close(out, expected @ v)
    support = torch.ones(11, 11).tril().bool() if causal else torch.ones(11, 11).bool()
    assert ((probs > 0) == support).all() and (probs.sum(-1) - 1).abs().max() < 1e-12
    weights = torch.randn_like(out)
    ours = torch.autograd.grad((out * weights).sum(), (q, k, v))
    theirs = torch.autograd.grad((expected @ v * weights).sum(), (q, k, v))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("name", [name for name in PLANS if name != "learned"])
@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 16])
def test_any_number_of_tokens(name: str, tokens: int) -> None:
    q, k, v = inputs(tokens)
    for causal in (False, True):
        out, probs = combiner_attention(q, k, v, name, causal, return_probs=True)
        torch.testing.assert_close(out, probs @ v)
        torch.testing.assert_close(probs.sum(-1), torch.ones(2, 2, tokens).double())


FOUR = [torch.tensor(x, dtype=torch.float64).view(1, 1, 4, 1) for x in ([0.0, 1, 2, 1], [0.0, 1, 0, 2])]
WORKED = [[1, 0, 0, 0], [0.2689, 0.7311, 0, 0], [0.2369, 0.6439, 0.1192, 0], [0.0658, 0.1789, 0.0900, 0.6652]]


@pytest.mark.parametrize("plan", [Fixed(2), LogSparse(), Learned(torch.tensor([0, 0, 1, 1]))], ids=str)
def test_four_tokens_by_hand(plan: Any) -> None:
    q, k = FOUR
    _, probs = combiner_attention(q, k, k, plan, causal=True, return_probs=True)
    torch.testing.assert_close(probs[0, 0], torch.tensor(WORKED).double(), rtol=0, atol=1e-4)


def test_a_region_weighs_as_one_token() -> None:
    zeros = torch.zeros(1, 1, 8, 2)
    _, probs = combiner_attention(zeros, zeros, zeros, Fixed(4), causal=True, return_probs=True)
    expected = torch.tensor([1 / 12] * 4 + [1 / 3] * 2 + [0, 0])
    torch.testing.assert_close(probs[0, 0, 5], expected)


FULL = [
    (Fixed(11), True),
    (Fixed(11), False),
    (Fixed(1), True),
    (Fixed(1), False),
    (AxialVertical(11), True),
    (AxialVertical(30), False),
    (AxialRowMajor(11), True),
]


@pytest.mark.parametrize(("plan", "causal"), FULL, ids=str)
def test_plans_that_are_full_attention(plan: Any, causal: bool) -> None:
    q, k, v = inputs()
    full = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    torch.testing.assert_close(combiner_attention(q, k, v, plan, causal), full)


@pytest.mark.parametrize("plan", [Fixed(4), LogSparse()], ids=str)
def test_two_queries_are_proportional_on_a_region(plan: Any) -> None:
    q, k, v = inputs()
    _, probs = combiner_attention(q, k, v, plan, causal=True, return_probs=True)
    ratio = probs[:, :, 9, :4] / probs[:, :, 8, :4]
    torch.testing.assert_close(ratio, ratio[..., :1].expand_as(ratio))
    assert not torch.allclose(probs[:, :, 9, 8:9] / probs[:, :, 8, 8:9], ratio[..., :1])


def test_regions_of_binary_digits() -> None:
    assert regions_of(LogSparse(), 6, 8, True) == ([6], [[0, 1, 2, 3], [4, 5]])
    assert regions_of(LogSparse(), 7, 8, True) == ([7], [[0, 1, 2, 3], [4, 5], [6]])


def test_learned_regions_may_differ_by_image_and_head() -> None:
    q, k, v = inputs()
    ids = torch.randint(4, (2, 2, 11))
    out = combiner_attention(q, k, v, Learned(ids), causal=True)
    for b in range(2):
        for h in range(2):
            part = [x[b : b + 1, h : h + 1] for x in (q, k, v)]
            one = combiner_attention(*part, Learned(ids[b, h]), causal=True)
            torch.testing.assert_close(out[b : b + 1, h : h + 1], one)
    shared = combiner_attention(q, k, v, Learned(ids[:, 0]), causal=False)
    torch.testing.assert_close(shared[:, 0], combiner_attention(q, k, v, Learned(ids), causal=False)[:, 0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("plan", EVERY, ids=str)
def test_half_precision(plan: Any, dtype: torch.dtype) -> None:
    q, k, v = (x.detach().to(dtype) for x in inputs())
    out, expected = (
        combiner_attention(*(x.to(kind) for x in (q, k, v)), plan, True) for kind in (dtype, torch.float32)
    )
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), expected, rtol=0, atol=0.01 if dtype is torch.float16 else 0.05)
    large = [30_000 * torch.ones_like(x) for x in (q, k, v)]
    assert combiner_attention(*large, plan, True).isfinite().all()


# The module.


def module_of(**changes: Any) -> CombinerAttention:
    torch.manual_seed(0)
    module = CombinerAttention(8, 2, **{"plan": "fixed", "size": 3, "causal": True, **changes}).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return module.eval()


CHOICES = [{"plan": name, "size": None if name == "logsparse" else 3} for name in PLANS if name != "learned"]


@pytest.mark.parametrize("changes", [*CHOICES, {"causal": False}, {"size": None}], ids=str)
def test_couplings_are_recorded_over_all_tokens(changes: dict[str, Any]) -> None:
    module, tokens = module_of(**changes), torch.randn(2, 8, 8, dtype=torch.float64)
    plain = module(tokens)
    with mereo.record(module) as trace:
        torch.testing.assert_close(module(tokens), plain)
    couplings = trace["coupling"]
    v = module.qkv(tokens)[..., 16:].unflatten(-1, (2, 4)).transpose(1, 2)
    torch.testing.assert_close(module.proj((couplings @ v).transpose(1, 2).flatten(2)), plain)
    torch.testing.assert_close(couplings.sum(-1), torch.ones(2, 2, 8).double())
    assert (couplings > 0).all() if not module.causal else torch.equal(couplings > 0, couplings.tril() > 0)


def test_learned_regions_are_an_input_of_the_module() -> None:
    module, tokens = module_of(plan="learned", size=None), torch.randn(2, 11, 8, dtype=torch.float64)
    q, k, v = module.qkv(tokens).unflatten(-1, (3, 2, 4)).transpose(1, 3).unbind(2)
    mixed = combiner_attention(q, k, v, Learned(IDS), causal=True)
    torch.testing.assert_close(module(tokens, regions=IDS), module.proj(mixed.transpose(1, 2).flatten(2)))
    with pytest.raises(UsageError, match="regions are None"):
        module(tokens)


def test_keys_of_rows_are_learned_from_what_a_token_attends_to_in_them() -> None:
    module, tokens = module_of(plan="axial_rowmajor"), torch.randn(1, 9, 8, dtype=torch.float64)
    q, k, v = module.qkv(tokens).unflatten(-1, (3, 2, 4)).transpose(1, 3).unbind(2)
    rows = [x.unflatten(2, (3, 3)) for x in (q, k, v)]
    shares = (rows[0] @ rows[1].mT / 2).softmax(-1)
    seen = (shares @ rows[2]).flatten(2, 3)
    merged = tokens + module.region_in(seen.transpose(1, 2).flatten(2))
    keys = module.region_out(module.region_norm(merged)).unflatten(-1, (2, 4)).transpose(1, 2)
    expected = torch.zeros_like(q)
    for h in range(2):
        for i in range(9):
            row, column = divmod(i, 3)
            past = [3 * r + column for r in range(row)]
            own = list(range(3 * row, i + 1))
            scores = torch.cat((k[0, h, own], keys[0, h, past])) @ q[0, h, i] / 2
            expected[0, h, i] = scores.softmax(0) @ torch.cat((v[0, h, own], seen[0, h, past]))
    torch.testing.assert_close(module(tokens), module.proj(expected.transpose(1, 2).flatten(2)))
    module(tokens).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in module.parameters())


def test_sizes_of_the_module() -> None:
    def count(plan: str) -> int:
        return sum(p.numel() for p in CombinerAttention(8, 2, plan=plan).parameters())

    assert count("fixed") == 4 * 8 * 8 and count("axial_rowmajor") == 6 * 8 * 8 + 2 * 8


def test_dropout_acts_on_the_weights_in_training_only() -> None:
    module, tokens = module_of(attn_drop=0.5), torch.randn(2, 8, 8, dtype=torch.float64)
    plain = module(tokens)
    assert torch.equal(module(tokens), plain)
    module.train()
    assert not torch.equal(module(tokens), module(tokens))
    with mereo.record(module) as trace:
        module(tokens)
    couplings = trace["coupling"]
    assert (couplings[:, :, 5] == 0).any() and couplings.isfinite().all()
    torch.manual_seed(0)
    mean = module(tokens[:1].expand(3000, -1, -1)).mean(0)
    torch.testing.assert_close(mean, plain[0], rtol=0, atol=0.15 * plain.abs().max().item())


def test_equal_scores_can_be_intervened() -> None:
    module, tokens = module_of(), torch.randn(1, 6, 8, dtype=torch.float64)
    with mereo.intervene(module, scores={"coupling": torch.zeros_like}), mereo.record(module) as trace:
        module(tokens)
    expected = torch.ones(6, 6).tril() / torch.arange(1.0, 7).unsqueeze(1)
    torch.testing.assert_close(trace["coupling"], expected.double().expand(1, 2, 6, 6))


QUERIES = torch.randn(1, 1, 4, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CombinerAttention(8, 3), "multiple of num_heads"),
        (lambda: CombinerAttention(8, 2, plan="fix"), "Did you mean 'fixed'"),
        (lambda: CombinerAttention(8, 2, pool="sum"), "pool is 'sum'"),
        (lambda: CombinerAttention(8, 2, size=0), "size is 0"),
        (lambda: CombinerAttention(8, 2, plan="axial_vertical", size=0), "columns is 0"),
        (lambda: CombinerAttention(8, 2)(torch.randn(1, 0, 8)), "at least one token"),
        (lambda: CombinerAttention(8, 2)(torch.randn(1, 4, 8), regions=IDS), "only 'learned'"),
        (lambda: combiner_attention(QUERIES, QUERIES[:, :, :3], QUERIES, "fixed"), "q as k"),
        (lambda: combiner_attention(QUERIES, QUERIES, QUERIES, "fixed", dropout=1.0), "dropout is 1.0"),
        (lambda: combiner_attention(QUERIES, QUERIES, QUERIES, Learned(IDS)), "11 tokens, and there are 4"),
        (lambda: Learned(torch.tensor([0, -1])), "counted from 0"),
        (lambda: Learned(torch.tensor([0.5])), "int64"),
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()
