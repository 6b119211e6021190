"""Hopfield layers: attention as their one step, settling by hand, counts, masks and learned memories."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mereo.core import record
from mereo.errors import UsageError
from mereo.mechanisms.attention import HopfieldAttention, HopfieldLookup, HopfieldPooling, MultiHeadAttention, retrieve


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def randomise(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5)


@pytest.mark.parametrize("beta", [None, 4**-0.5])
def test_one_step_is_multi_head_attention(beta: float | None) -> None:
    torch.manual_seed(0)
    hopfield = HopfieldAttention(12, 3, context_dim=8, beta=beta)
    randomise(hopfield)
    attention = MultiHeadAttention(12, 3, context_dim=8)
    attention.load_state_dict(hopfield.state_dict())
    tokens, context, mask = torch.randn(2, 5, 12), torch.randn(2, 7, 8), torch.rand(2, 7) < 0.7
    torch.testing.assert_close(hopfield(tokens, context, mask), attention(tokens, context, mask))


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_settles_among_the_keys_then_reads_the_values(steps: int) -> None:
    torch.manual_seed(0)
    module = HopfieldAttention(8, 2, beta=2.0, steps=steps)
    randomise(module)
    tokens, mask = torch.randn(2, 5, 8), torch.rand(2, 5) < 0.8
    mask[:, 0] = True
    q, k, v = (f(tokens).unflatten(-1, (2, 4)).transpose(1, 2) for f in (module.query, module.key, module.value))
    heads = []
    for h in range(2):
        state = retrieve(q[:, h], k[:, h], beta=2.0, steps=steps - 1, mask=mask)[0] if steps > 1 else q[:, h]
        heads.append(retrieve(state, k[:, h], v[:, h], beta=2.0, mask=mask)[0])
    torch.testing.assert_close(module(tokens, mask=mask), module.proj(torch.cat(heads, -1)), rtol=1e-5, atol=1e-5)
    if steps > 1:
        module.steps = 1
        assert not torch.allclose(module(tokens, mask=mask), module.proj(torch.cat(heads, -1)), atol=1e-3)


def test_every_step_is_recorded() -> None:
    torch.manual_seed(0)
    module = HopfieldAttention(8, 2, steps=3, beta=3.0)
    tokens = torch.randn(2, 5, 8)
    plain = module(tokens)
    with record(module) as trace:
        torch.testing.assert_close(module(tokens), plain)
    steps = trace.steps("coupling")
    assert len(steps) == 3 and not torch.equal(steps[0], steps[2])
    torch.testing.assert_close(steps[2].sum(-1), torch.ones(2, 2, 5))


def test_connected_values_are_made_of_keys() -> None:
    torch.manual_seed(0)
    module = HopfieldAttention(8, 2, context_dim=6, connected=True)
    randomise(module)
    tokens, context = torch.randn(2, 5, 8), torch.randn(2, 7, 6)
    attention = MultiHeadAttention(8, 2)
    attention.load_state_dict(module.state_dict() | {"key.weight": torch.eye(8), "key.bias": torch.zeros(8)})
    torch.testing.assert_close(module(tokens, context), attention(tokens, module.key(context)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("apart", [False, True])
def test_connected_values_are_projected_twice_from_what_a_norm_of_their_own_gives(apart: bool) -> None:
    torch.manual_seed(0)
    module = HopfieldAttention(8, 2, context_dim=6, connected=True, norm=True)
    randomise(module)
    tokens, context = torch.randn(2, 5, 8), torch.randn(2, 7, 6)
    values = torch.randn(2, 7, 6) if apart else None
    state, k = module.norm_state(tokens), module.key(module.norm_stored(context))
    norm, source = module.norm_value, context if values is None else values
    twice = F.linear(F.layer_norm(source, (6,), norm.weight, norm.bias), module.key.weight, module.key.bias)
    v = F.linear(twice, module.value.weight, module.value.bias)
    heads = []
    for part in (slice(0, 4), slice(4, 8)):
        scores = module.query(state)[..., part] @ k[..., part].transpose(1, 2) / 2
        heads.append(scores.softmax(-1) @ v[..., part])
    expected = module.proj(torch.cat(heads, -1))
    torch.testing.assert_close(module(tokens, context, values=values), expected, rtol=1e-5, atol=1e-5)


def test_values_may_be_given_apart() -> None:
    torch.manual_seed(0)
    module = HopfieldAttention(8, 2)
    tokens, context, values = torch.randn(2, 5, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 8)
    torch.testing.assert_close(module(tokens, context, values=context), module(tokens, context))
    constant = module(tokens, context, values=values[:, :1].expand_as(values))
    expected = module.proj(module.value(values[:, :1])).expand_as(constant)
    torch.testing.assert_close(constant, expected, rtol=1e-5, atol=1e-5)


def test_norms_act_on_inputs() -> None:
    torch.manual_seed(0)
    module = HopfieldAttention(8, 2, norm=True)
    tokens, context = torch.randn(2, 5, 8), torch.randn(2, 7, 8)
    torch.testing.assert_close(module(3 * tokens + 1, 2 * context - 1), module(tokens, context), rtol=1e-3, atol=1e-4)
    plain = HopfieldAttention(8, 2)
    plain.load_state_dict({k: v for k, v in module.state_dict().items() if not k.startswith("norm")})
    normal = nn.functional.layer_norm
    torch.testing.assert_close(module(tokens, context), plain(normal(tokens, (8,)), normal(context, (8,))))


@pytest.mark.parametrize("normaliser", ["sparsemax", "entmax15"])
def test_sparse_layers(normaliser: str) -> None:
    torch.manual_seed(0)
    module = HopfieldAttention(8, 2, normaliser=normaliser, beta=5.0, steps=2)
    with record(module) as trace:
        module(3 * torch.randn(2, 8, 8))
    assert (trace["coupling"] == 0).any()


@pytest.mark.parametrize(
    ("module", "parameters"),
    [
        (HopfieldAttention(8, 2), 288),
        (HopfieldAttention(8, 2, norm=True), 336),
        (HopfieldPooling(8, 2, num_queries=3, norm=True), 336 + 3 * 8),
        (HopfieldLookup(8, 2, num_patterns=10, norm=True), 336 + 80),
        (HopfieldLookup(8, 2, num_patterns=10, own_values=True), 288 + 160),
    ],
)
def test_counts(module: nn.Module, parameters: int) -> None:
    assert count(module) == parameters


def test_pooling_is_attention_by_learned_states() -> None:
    torch.manual_seed(0)
    module = HopfieldPooling(8, 2, num_queries=3, steps=2)
    tokens, mask = torch.randn(2, 5, 8), torch.tensor([[True] * 5, [True, True, False, False, True]])
    out = module(tokens, mask)
    assert out.shape == (2, 3, 8)
    torch.testing.assert_close(out[1:], module(tokens[1:, [0, 1, 4]]), rtol=1e-5, atol=1e-5)
    order = torch.randperm(5)
    torch.testing.assert_close(module(tokens[:, order], mask[:, order]), out, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out, module.hopfield(module.queries.expand(2, -1, -1), tokens, mask))
    out.sum().backward()
    assert module.queries.grad is not None and (module.queries.grad != 0).any()


@pytest.mark.parametrize("own_values", [False, True])
def test_lookup_reads_from_learned_patterns(own_values: bool) -> None:
    torch.manual_seed(0)
    module = HopfieldLookup(8, 2, num_patterns=6, own_values=own_values)
    randomise(module)
    tokens = torch.randn(2, 5, 8)
    out = module(tokens)
    assert out.shape == (2, 5, 8)
    values = module.patterns if module.values is None else module.values
    constant = values.detach()[:1].expand_as(values).contiguous()
    values.data.copy_(constant)
    if own_values:
        read = module.hopfield.proj(module.hopfield.value(values[:1])).expand(2, 5, 8)
        torch.testing.assert_close(module(tokens), read, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(out, module(tokens))
    out.sum().backward()
    assert all(p.grad is not None for p in module.parameters())
    torch.testing.assert_close(module(tokens[1:]), module(tokens)[1:], rtol=1e-5, atol=1e-5)


def test_learned_patterns_start_small() -> None:
    torch.manual_seed(0)
    lookup = HopfieldLookup(32, 4, num_patterns=32, own_values=True)
    assert lookup.values is not None
    for learned in (lookup.patterns, lookup.values, HopfieldPooling(32, 4, num_queries=32).queries):
        assert 0.018 < learned.std() < 0.022 and learned.mean().abs() < 0.003


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (HopfieldAttention, {"steps": 0}, "steps is 0"),
        (HopfieldAttention, {"beta": 0.0}, "beta is 0.0"),
        (HopfieldAttention, {"num_heads": 3}, "dim is 8 and num_heads 3"),
        (HopfieldPooling, {"num_queries": 0}, "num_queries is 0"),
        (HopfieldLookup, {"num_patterns": 0}, "num_patterns is 0"),
    ],
)
def test_wrong_arguments(make: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(8, **options)
