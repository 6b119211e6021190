"""Redistribution: worked rows, a slow reference, what stays, batches, caches, sinks, refusals, and other libraries."""

from typing import Any

import pytest
import torch
from torch import Tensor

import mereo
from mereo.errors import UsageError
from mereo.interventions import find_sink_dimensions, redistribute_visual_attention
from mereo.interventions.redistribute_visual_attention import redistribute, sink_values, threshold
from tiny_decoders import cached, prompts, recomputed, tiny_vl

VISUAL = torch.tensor([[False, True, True, True, True, False, False]])
SINKS = torch.tensor([[True, False, True, False, False, False, False]])


def rule(row: list[float], **changes: float) -> Tensor:
    couplings = torch.tensor(row, dtype=torch.float64).view(1, 1, 1, 7)
    given: Any = {"rho": 0.5, "take": 0.6, **changes}
    return redistribute(couplings, VISUAL, SINKS, torch.tensor([[True]]), **given).flatten()


@pytest.mark.parametrize(
    ("take", "expected"),
    [(0.4, [0.18, 0.15, 0.12, 0.30, 0.15, 0.05, 0.05]), (0.6, [0.12, 0.175, 0.08, 0.35, 0.175, 0.05, 0.05])],
)
def test_worked_rows(take: float, expected: list[float]) -> None:
    found = rule([0.3, 0.1, 0.2, 0.2, 0.1, 0.05, 0.05], take=take)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    spared = [0.3, 0.05, 0.5, 0.02, 0.03, 0.05, 0.05]
    assert rule(spared, take=take).tolist() == spared, "r is 1 / 6"


def by_loops(a: Tensor, visual: Tensor, sinks: Tensor, rho: float, take: float, least: float) -> Tensor:
    out = a.clone()
    image, holes = set(visual.nonzero().flatten().tolist()), set(sinks.nonzero().flatten().tolist())
    for head in range(a.shape[0]):
        for query in range(a.shape[1]):
            row = a[head, query].tolist()
            mass = sum(row[j] for j in image)
            good = sum(row[j] for j in image - holes)
            if not image & holes or not good or mass < least or good / mass < rho:
                continue
            budget = take * sum(row[j] for j in holes)
            for j in range(len(row)):
                if j in holes:
                    out[head, query, j] = (1 - take) * row[j]
                elif j in image:
                    out[head, query, j] = row[j] + budget * row[j] / good
    return out


def test_two_hundred_rows_by_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    couplings = (2 * torch.randn(5, 4, 10, 9, generator=generator, dtype=torch.float64)).softmax(-1)
    visual, sinks = (torch.rand(5, 9, generator=generator) < share for share in (0.6, 0.3))
    given = {"rho": 0.6, "take": 0.7, "min_visual": 0.3}
    found = redistribute(couplings, visual, sinks, torch.ones(5, 10, dtype=torch.bool), **given)
    expected = torch.stack([by_loops(*each, 0.6, 0.7, 0.3) for each in zip(couplings, visual, sinks, strict=True)])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)
    torch.testing.assert_close(found.sum(-1), torch.ones(5, 4, 10, dtype=torch.float64))
    changed = (found != couplings).any(-1, keepdim=True)
    assert changed.any() and not changed.all()
    untouched = ~(visual | sinks)[:, None, None].expand_as(found)
    assert torch.equal(found[untouched], couplings[untouched])
    everything = torch.ones(5, 10, dtype=torch.bool)
    for same in ({"take": 0.0}, {"rho": 1.1}, {"min_visual": 1.1}):
        assert torch.equal(redistribute(couplings, visual, sinks, everything, **{**given, **same}), couplings)
    assert torch.equal(redistribute(couplings, visual, sinks & ~visual, everything, **given), couplings)


def test_gradients_are_finite_where_nothing_but_sinks_is_attended_to() -> None:
    rows = torch.tensor([[0.5, 0, 0.5, 0, 0, 0, 0], [0.3, 0.1, 0.2, 0.2, 0.1, 0.05, 0.05]]).requires_grad_()
    found = redistribute(rows.view(1, 1, 2, 7), VISUAL, SINKS, torch.tensor([[True, True]]), rho=0.0, take=0.4)
    assert torch.equal(found[0, 0, 0], rows[0])
    (slope,) = torch.autograd.grad(found.square().sum(), rows)
    assert slope.isfinite().all() and torch.equal(slope[0], 2 * rows[0])


def test_sink_values_are_free_of_scale_and_bounded() -> None:
    x = torch.randn(3, 5, 48)
    torch.testing.assert_close(sink_values(x, [1, 2]), sink_values(3e3 * x, [1, 2]), rtol=1e-4, atol=0)
    spike = torch.zeros(48).index_fill(0, torch.tensor(7), 1e4)
    assert float(sink_values(spike, [7])) == pytest.approx(48**0.5)
    assert threshold("relative", 4096) == 20 and threshold(5.0, 48) == 5


def test_batches_caches_and_what_is_left_behind() -> None:
    model, rows, tokens = tiny_vl(), prompts(), torch.tensor([[3, 9], [5, 1]])
    assert find_sink_dimensions(model, rows) == [0]
    plain = cached(model, rows, tokens)
    with redistribute_visual_attention(model, rho=0.1, min_visual=0.0):
        changed = cached(model, rows, tokens)
        torch.testing.assert_close(changed, recomputed(model, rows, tokens), rtol=0, atol=1e-5)
    assert (changed - plain).abs().max() > 1e-3
    for place in range(2):
        one = slice(place, place + 1)
        with redistribute_visual_attention(model, rho=0.1, min_visual=0.0):
            torch.testing.assert_close(cached(model, rows[one], tokens[one]), changed[one], rtol=0, atol=1e-5)
    with pytest.raises(InterruptedError), redistribute_visual_attention(model):
        raise InterruptedError
    for same in ({"take": 0.0}, {"rho": 1.1}, {"min_visual": 1.1}):
        with redistribute_visual_attention(model, **same):
            assert torch.equal(cached(model, rows, tokens), plain)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_queries_before_the_image_end_and_the_last_layer_stay() -> None:
    model, rows = tiny_vl(), prompts()
    names = [f"blocks.{layer}.coupling" for layer in range(4)]
    with mereo.record(model) as plain, torch.no_grad():
        model(rows)
    with redistribute_visual_attention(model, rho=0.0, min_visual=0.0), torch.no_grad():
        by_rows = model(rows)  # fused attention computes the rows before the text
        with mereo.record(model) as trace:
            whole = model(rows)
    torch.testing.assert_close(by_rows, whole, rtol=0, atol=1e-5)
    for layer, name in enumerate(names):
        same = trace[name][:, :, :17] == plain[name][:, :, :17]
        assert same.all(), "images and the start attend as before"
        assert torch.equal(trace[name], plain[name]) == (layer < 2)
    # The last layer reads changed states, but its own rows keep the attention to sinks.
    assert (trace[names[2]][:, :, 17:, 6] < plain[names[2]][:, :, 17:, 6]).any()


def test_a_model_without_sinks_stays_and_says_so() -> None:
    model, rows = tiny_vl(), prompts()
    with torch.no_grad():
        model.positions[[0, 6], 0] -= 100.0
    with torch.no_grad():
        plain = model(rows)
    with redistribute_visual_attention(model, tau=3.99), pytest.warns(UserWarning, match="sink"), torch.no_grad():
        assert torch.equal(model(rows), plain)


def test_half_precision() -> None:
    model = tiny_vl().bfloat16()
    with redistribute_visual_attention(model, rho=0.1), torch.no_grad():
        scores = model(prompts().bfloat16())
    assert scores.dtype == torch.bfloat16 and scores.isfinite().all()


@pytest.mark.parametrize(
    ("changes", "argument", "value"),
    [
        ({"layers": [7]}, "layers", "7"),
        ({"visual": torch.zeros(30, dtype=torch.bool)}, "visual", "no token"),
        ({"visual": torch.ones(3, 30, dtype=torch.bool)}, "visual", "30"),
        ({"visual": torch.ones(4)}, "visual", "float32"),
        ({"take": 1.5}, "take", "1.5"),
        ({"dims": []}, "dims", "empty"),
        ({"dims": [99]}, "dims", "99"),
    ],
)
def test_refusals(changes: dict[str, Any], argument: str, value: str) -> None:
    model, rows = tiny_vl(), prompts()
    plain = model(rows)
    with pytest.raises(UsageError) as error, redistribute_visual_attention(model, **changes):
        model(rows)
    assert argument in str(error.value) and value in str(error.value) and "\n" not in str(error.value)
    assert torch.equal(model(rows), plain)
    with pytest.raises(UsageError) as error, redistribute_visual_attention(torch.nn.Linear(2, 2), [True, True]):
        pass
    assert "model is Linear" in str(error.value)


def test_a_decoder_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4, "vocab_size": 20}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(50)
        model.model.embed_tokens.weight[:2, 0] += 60.0
    tokens = torch.tensor([[0, 1, 5, 6, 7, 8, 9, 2], [0, 5, 1, 6, 7, 8, 9, 3]])
    visual, attention = torch.arange(8).ge(1) & torch.arange(8).lt(5), torch.tensor([[0] + [1] * 7, [1] * 8])
    with torch.no_grad():
        plain = model(tokens, attention_mask=attention).logits
        with mereo.record(model) as trace:
            seen = model(tokens, attention_mask=attention).logits
        torch.testing.assert_close(seen[:, 1:], plain[:, 1:], rtol=0, atol=1e-5)
        assert len(trace) == 4 and trace["model.layers.0.self_attn.coupling"].shape == (2, 4, 8, 8)
        for change in (redistribute_visual_attention, mereo.interventions.paint):
            given: Any = {"rho": 0.0, "min_visual": 0.0} if change is redistribute_visual_attention else {}
            with change(model, visual, **given):
                whole = model(tokens).logits
                cache = model(tokens, use_cache=True).past_key_values
                more = model(torch.tensor([[4], [4]]), past_key_values=cache).logits
                full = model(torch.cat((tokens, torch.tensor([[4], [4]])), 1)).logits
            torch.testing.assert_close(more[:, -1], full[:, -1], rtol=0, atol=1e-5)
            assert (whole[:, -1] - plain[:, -1]).abs().max() > 1e-4

        def text_only(tokens: Tensor, **options: Any) -> tuple[tuple[Tensor], dict[str, Any]]:
            return (tokens[:, ~visual],), {}

        with mereo.interventions.vision_aware_heads(model, without=text_only) as heads:
            reinforced = model(tokens).logits
        assert sorted(heads.gates) == [1, 2, 3] and heads.gates[1].shape == (2, 4)
        assert (reinforced - plain).abs().max() > 1e-4
        assert torch.equal(model(tokens, attention_mask=attention).logits, plain)
    assert model.config._attn_implementation != "mereo"
