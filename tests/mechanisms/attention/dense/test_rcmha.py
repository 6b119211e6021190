"""RCMHA: loops in float64, worked numbers, its special cases, causality, memory and steps, counts, bad input."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.attention import RelativeConvolutionalAttention
from mereo.mechanisms.attention.dense.rcmha import relative_scores, shift_rows

VARIANTS: dict[str, dict[str, Any]] = {
    "RCMHA": {}, "RMHA": {"kernel": 0}, "MDHA": {"reach": 0}, "MHA": {"kernel": 0, "reach": 0},
}  # fmt: skip
every_variant = pytest.mark.parametrize("name", VARIANTS)


def made(**arguments: Any) -> RelativeConvolutionalAttention:
    """In float64, with tables, biases and filters away from their start."""
    layer = RelativeConvolutionalAttention(12, 3, **{"reach": 16, **arguments}).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return layer


def some(tokens: int = 7, batch: int = 2) -> Tensor:
    return torch.randn(batch, tokens, 12, dtype=torch.float64)


def reference(layer: RelativeConvolutionalAttention, x: Tensor, memory: Tensor) -> Tensor:
    """One sample (tokens, dim) and its memory, by loops over heads, receivers and senders."""
    y, out = torch.cat((memory, x)), torch.zeros_like(x)

    def convolved(name: str, vectors: Tensor, t: int, head: int) -> Tensor:
        own = slice(4 * head, 4 * head + 4)
        if not layer.kernel:
            return vectors[t, own]
        conv = layer.get_submodule(f"{name}_conv")
        total = conv.bias.clone()
        for back in range(layer.kernel):
            if t - back >= 0:
                total = total + conv.weight[:, 0, layer.kernel - 1 - back, 0] * vectors[t - back, own]
        return total

    q, k, v = layer.query(x), layer.key(y), layer.value(y)
    for h in range(3):
        for i in range(len(x)):
            query, scores = convolved("query", q, i, h), []
            for j in range(i + len(memory) + 1):
                score = query @ convolved("key", k, j, h)
                if layer.reach:
                    r = layer.reach + j - i - len(memory)
                    score = score + layer.query_bias[h] @ convolved("key", k, j, h)
                    score = score + query @ layer.table[r, h] + layer.table_bias[r, h]
                scores.append(score / 2)
            shares = torch.stack(scores).softmax(0)
            out[i, 4 * h : 4 * h + 4] = sum(share * convolved("value", v, j, h) for j, share in enumerate(shares))
    return layer.proj(out)


@every_variant
@pytest.mark.parametrize("past", [0, 1, 3])
def test_it_equals_its_equations(name: str, past: int) -> None:
    layer, x, memory = made(**VARIANTS[name]), some(), some(past)
    expected = torch.stack([reference(layer, *pair) for pair in zip(x, memory, strict=True)])
    torch.testing.assert_close(layer(x, memory), expected, rtol=1e-10, atol=1e-12)
    if not past:
        torch.testing.assert_close(layer(x), expected, rtol=1e-10, atol=1e-12)


def test_rows_are_shifted_as_a_view() -> None:
    scores = torch.arange(10.0).view(2, 5)
    shifted = shift_rows(scores, 3)
    assert shifted.tolist() == [[2, 3, 4], [6, 7, 8]]
    assert shifted.untyped_storage().data_ptr() == scores.untyped_storage().data_ptr()
    # Without offsets of later senders, what is allowed is the same.
    assert shift_rows(scores[:, :4].contiguous(), 3).tolist() == [[2, 3, 5], [6, 7, 8]]


def test_scores_by_the_offset() -> None:
    q, table, bias = torch.randn(2, 3, 4, 5), torch.randn(12, 3, 5), torch.randn(12, 3)
    scores = relative_scores(q, table, bias, 6)
    for i in range(4):
        for j in range(i + 3):
            r = 6 + j - (i + 6 - 4)
            expected = (q[:, :, i] * table[r]).sum(-1) + bias[r]
            torch.testing.assert_close(scores[:, :, i, j], expected)


def test_filters_of_one_and_no_tables_give_multi_head_attention() -> None:
    layer, plain = made(), made(kernel=0, reach=0)
    with torch.no_grad():
        for conv in (layer.query_conv, layer.key_conv, layer.value_conv):
            conv.weight.zero_()[:, :, -1] = 1
            conv.bias.zero_()
        for parameter in (layer.query_bias, layer.table, layer.table_bias):
            parameter.zero_()
    assert plain.load_state_dict(layer.state_dict(), strict=False).missing_keys == []
    x = some()
    q, k, v = (f(x).unflatten(-1, (3, 4)).transpose(1, 2) for f in (layer.query, layer.key, layer.value))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    for each in (layer, plain):
        torch.testing.assert_close(each(x), layer.proj(expected.transpose(1, 2).flatten(2)))


@every_variant
def test_a_token_changes_nothing_before_it(name: str) -> None:
    layer, x = made(**VARIANTS[name]), some(9)
    out = layer(x)
    for t in range(9):
        changed = x.clone()
        changed[:, t] += 1
        apart = (layer(changed) - out).abs().amax((0, 2))
        assert (apart[:t] == 0).all() and (apart[t] > 1e-6).all()
        reached = range(t, min(t + 3, 9)) if name in ("RCMHA", "MDHA") else (t,)
        assert all(apart[i] > 1e-6 for i in reached)


@pytest.mark.parametrize("kernel", [3, 0])
def test_padding_in_front_changes_nothing(kernel: int) -> None:
    layer, x = made(kernel=kernel), some(6)
    padded, visible = torch.cat((some(4), x), 1), torch.arange(10).expand(2, -1) >= 4
    with mereo.record(layer) as trace:
        out = layer(padded, None, visible)
    torch.testing.assert_close(out[:, 4:], layer(x))
    assert (trace["coupling"][..., :4] == 0).all() and out.isfinite().all()
    # As memory it is the same, and without `visible` it is not.
    torch.testing.assert_close(layer(x, padded[:, :4], visible), layer(x))
    assert (layer(x, padded[:, :4]) - layer(x)).abs().max() > 1e-3
    assert layer(x, None, torch.zeros(2, 6, dtype=torch.bool)).isfinite().all()


def test_published_numbers_of_parameters() -> None:
    def count(module: nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    layer = RelativeConvolutionalAttention(128, 8)
    assert count(layer) == 1_180_224 and layer.table.numel() + layer.table_bias.numel() == 1_114_112
    assert count(RelativeConvolutionalAttention(32, 4)) == 299_200
    assert not any(p.any() for p in (layer.table, layer.table_bias, layer.query_bias))


def test_a_bias_by_distance_is_alibi() -> None:
    layer, x = made(), some()
    slopes = torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64)
    with torch.no_grad():
        layer.query_bias.zero_()
        layer.table.zero_()
        layer.table_bias.copy_(-(torch.arange(32) - 16).abs().unsqueeze(1) * slopes)
    with mereo.record(layer) as trace:
        layer(x)
    plain = made(reach=0)
    plain.load_state_dict(layer.state_dict(), strict=False)
    with mereo.record(plain) as without:
        plain(x)
    apart = torch.arange(7) - torch.arange(7).unsqueeze(1)
    alibi = (apart.clamp(max=0) * slopes.view(3, 1, 1) / 4**0.5).exp()
    expected = without["coupling"] * alibi
    torch.testing.assert_close(trace["coupling"], expected / expected.sum(-1, keepdim=True))


def test_the_memory_is_the_sequence_before_but_for_the_first_queries() -> None:
    layer, x = made(), some(10)
    whole, second = layer(x), layer(x[:, 4:], x[:, :4])
    torch.testing.assert_close(second[:, 2:], whole[:, 6:])
    assert ((second[:, :2] - whole[:, 4:6]).abs().amax((0, 2)) > 1e-3).all()
    plain = made(kernel=0)
    torch.testing.assert_close(plain(x[:, 4:], x[:, :4]), plain(x)[:, 4:])


@every_variant
def test_parts_of_any_length_are_the_whole(name: str) -> None:
    layer, x = made(**VARIANTS[name]), some(12)
    state, parts = None, []
    for part in x.split([1, 1, 5, 3, 2], 1):
        out, state = layer.extend(part, state)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts, 1), layer(x))
    assert state.keys.shape == (2, 3, 12, 4) and state.last[0].shape == (2, (layer.kernel or 1) - 1, 12)


@pytest.mark.parametrize("kernel", [3, 0])
def test_tokens_beyond_its_reach_are_forgotten_in_parts_of_any_length(kernel: int) -> None:
    layer, wide, x = made(reach=5, kernel=kernel), made(reach=16, kernel=kernel), some(14)
    tables = ("table", "table_bias")
    wide.load_state_dict({name: t for name, t in layer.state_dict().items() if name not in tables}, strict=False)
    with torch.no_grad():
        for name in tables:  # scores of -1e9 are none
            ours, theirs = getattr(layer, name), getattr(wide, name)
            theirs.zero_()[12:17] = ours[1:6]
        wide.table_bias[:12] = -1e9
    expected = wide(x)
    for lengths in ([14], [1] * 14, [4, 7, 3], [6, 8]):
        state, parts = None, []
        for part in x.split(lengths, 1):
            out, state = layer.extend(part, state)
            parts.append(out)
        torch.testing.assert_close(torch.cat(parts, 1), expected)
        assert state.keys.shape[2] == state.values.shape[2] == 4


def test_its_gradients_are_exact() -> None:
    layer = made(reach=5)
    x, memory = some(3, 1).requires_grad_(), some(2, 1).requires_grad_()
    assert torch.autograd.gradcheck(layer, (x, memory))
    layer(x, memory).square().sum().backward()
    assert not layer.table.grad[6:].any() and layer.table.grad[1:6].all()  # 5 tokens before, no later one


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 7])
def test_zeros_in_half_precision(dtype: torch.dtype, tokens: int) -> None:
    layer = RelativeConvolutionalAttention(12, 3, reach=16).to(dtype)
    assert layer(torch.zeros(1, tokens, 12, dtype=dtype)).isfinite().all()


def test_bad_input() -> None:
    for arguments, message in (
        ({"num_heads": 5}, "num_heads 5"), ({"kernel": -1}, "kernel is -1"), ({"reach": -1}, "reach is -1"),
        ({"reach": 2.5}, "reach is 2.5"), ({"attn_drop": 1.0}, "attn_drop is 1.0"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=message):
            RelativeConvolutionalAttention(12, **{"num_heads": 3, **arguments})
    layer = made(reach=8)
    assert layer(some(3), some(5)).shape == (2, 3, 12)
    with pytest.raises(UsageError, match="reach is 8, and there are 9"):
        layer(some(4), some(5))
    for empty in (lambda: layer(some(0)), lambda: layer.extend(some(0))):
        with pytest.raises(UsageError, match="at least one token"):
            empty()
    with pytest.raises(UsageError, match="memory"):
        layer(some(4), some(5)[0])
