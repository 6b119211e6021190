"""Multi-head attention against PyTorch's, against loops, its masks, counts and refusals."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mereo.core import record
from mereo.errors import UsageError
from mereo.mechanisms.attention import MultiHeadAttention


def torch_twin(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    """PyTorch's module with our weights."""
    dim, context_dim = ours.query.in_features, ours.key.in_features
    twin = nn.MultiheadAttention(dim, ours.num_heads, kdim=context_dim, vdim=context_dim, batch_first=True)
    with torch.no_grad():
        if context_dim == dim:
            twin.in_proj_weight.copy_(torch.cat([m.weight for m in (ours.query, ours.key, ours.value)]))
        else:
            twin.q_proj_weight.copy_(ours.query.weight)
            twin.k_proj_weight.copy_(ours.key.weight)
            twin.v_proj_weight.copy_(ours.value.weight)
        twin.in_proj_bias.copy_(torch.cat([m.bias for m in (ours.query, ours.key, ours.value)]))
        twin.out_proj.load_state_dict(ours.proj.state_dict())
    return twin


def randomise(module: nn.Module) -> None:
    """Biases start at zero: give them values that a test can miss."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5)


@pytest.mark.parametrize("context_dim", [12, 8])
def test_equals_torch_with_copied_weights(context_dim: int) -> None:
    torch.manual_seed(0)
    ours = MultiHeadAttention(12, 3, context_dim=context_dim)
    randomise(ours)
    twin = torch_twin(ours)
    tokens, context = torch.randn(2, 5, 12), torch.randn(2, 7, context_dim)
    mask = torch.rand(2, 7) < 0.6
    mask[:, 0] = True
    with record(ours) as trace:
        got = ours(tokens, context, mask)
    expected, couplings = twin(tokens, context, context, key_padding_mask=~mask, average_attn_weights=False)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(trace["coupling"], couplings, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours(tokens, context, mask), expected, rtol=1e-5, atol=1e-5)


def by_loops(module: MultiHeadAttention, tokens: Tensor, context: Tensor) -> Tensor:
    q, k, v = module.query(tokens), module.key(context), module.value(context)
    heads, size = module.num_heads, q.shape[-1] // module.num_heads
    out = torch.zeros_like(tokens)
    for b in range(tokens.shape[0]):
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            for r in range(tokens.shape[1]):
                scores = [q[b, r, part].dot(k[b, s, part]).item() / size**0.5 for s in range(context.shape[1])]
                weights = torch.tensor(scores, dtype=torch.float64).softmax(0)
                for s, weight in enumerate(weights):
                    out[b, r, part] += weight * v[b, s, part]
    return module.proj(out)


@torch.no_grad()
def test_equals_loops_in_float64() -> None:
    torch.manual_seed(0)
    module = MultiHeadAttention(6, 2, context_dim=4).double()
    randomise(module)
    tokens, context = torch.randn(2, 3, 6, dtype=torch.float64), torch.randn(2, 5, 4, dtype=torch.float64)
    torch.testing.assert_close(module(tokens, context), by_loops(module, tokens, context))


def test_self_attention_is_attention_to_oneself() -> None:
    torch.manual_seed(0)
    module, tokens = MultiHeadAttention(8, 2), torch.randn(2, 5, 8)
    torch.testing.assert_close(module(tokens), module(tokens, tokens))
    order = torch.randperm(5)
    torch.testing.assert_close(module(tokens[:, order]), module(tokens)[:, order])


def test_the_three_forms_of_a_mask_agree() -> None:
    torch.manual_seed(0)
    module, tokens, mask = MultiHeadAttention(8, 2), torch.randn(2, 5, 8), torch.rand(2, 5) < 0.5
    mask[:, 0] = True
    by_sender = module(tokens, mask=mask)
    torch.testing.assert_close(module(tokens, mask=mask.unsqueeze(1).expand(2, 5, 5)), by_sender)
    torch.testing.assert_close(module(tokens, mask=mask[:, None, None].expand(2, 2, 5, 5)), by_sender)
    for b in range(2):
        kept = tokens[b : b + 1, mask[b]]
        torch.testing.assert_close(module(tokens[b : b + 1], kept), by_sender[b : b + 1], rtol=1e-5, atol=1e-5)


def test_a_fully_masked_token_gets_only_the_bias() -> None:
    torch.manual_seed(0)
    module, tokens = MultiHeadAttention(8, 2), torch.randn(2, 5, 8, requires_grad=True)
    randomise(module)
    mask = torch.ones(2, 5, 5, dtype=torch.bool)
    mask[1, 3] = False
    out = module(tokens, mask=mask)
    torch.testing.assert_close(out[1, 3], module.proj.bias)
    out.square().sum().backward()
    assert tokens.grad is not None and tokens.grad.isfinite().all()


def test_over_receivers_shares_out_the_senders() -> None:
    torch.manual_seed(0)
    module = MultiHeadAttention(8, 2, over="receivers")
    with record(module) as trace:
        module(torch.randn(2, 3, 8), torch.randn(2, 5, 8))
    torch.testing.assert_close(trace["coupling"].sum(-2), torch.ones(2, 2, 5))


def test_normaliser_is_used() -> None:
    torch.manual_seed(0)
    module = MultiHeadAttention(8, 2, normaliser="sparsemax")
    with record(module) as trace:
        module(5 * torch.randn(2, 8, 8))
    assert (trace["coupling"] == 0).any()
    torch.testing.assert_close(trace["coupling"].sum(-1), torch.ones(2, 2, 8))


def test_dropouts_act_only_in_training() -> None:
    torch.manual_seed(0)
    tokens = torch.randn(2, 8, 8)
    for option in ("attn_drop", "proj_drop"):
        module = MultiHeadAttention(8, 2, **{option: 0.5})
        assert not torch.equal(module(tokens), module(tokens))
        assert torch.equal(module.eval()(tokens), module(tokens))


@pytest.mark.parametrize(
    ("options", "count"),
    [({}, 4 * (16**2 + 16)), ({"qkv_bias": False}, 4 * 16**2 + 16), ({"context_dim": 8}, 2 * 272 + 2 * (8 * 16 + 16))],
)
def test_counts(options: dict[str, Any], count: int) -> None:
    assert sum(p.numel() for p in MultiHeadAttention(16, 4, **options).parameters()) == count


def test_start() -> None:
    torch.manual_seed(0)
    module = MultiHeadAttention(32, 4)
    for linear in (module.query, module.key, module.value, module.proj):
        assert (linear.bias == 0).all()
        bound = (6 / 64) ** 0.5
        assert 0.9 * bound < linear.weight.abs().max() <= bound


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 10, "num_heads": 4}, "dim is 10 and num_heads 4"),
        ({"dim": 0}, "dim is 0"),
        ({"dim": 8, "num_heads": -2}, "num_heads is -2"),
        ({"dim": 8, "attn_drop": 1.5}, "attn_drop is 1.5"),
        ({"dim": 8, "proj_drop": -1}, "proj_drop is -1"),
        ({"dim": 8, "over": "keys"}, "over is 'keys'"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MultiHeadAttention(**options)


@pytest.mark.parametrize("mask", [torch.ones(2, 5), torch.ones(5, dtype=torch.bool)])
def test_wrong_masks(mask: Tensor) -> None:
    with pytest.raises(UsageError, match="mask is"):
        MultiHeadAttention(8, 2)(torch.randn(2, 5, 8), mask=mask)
