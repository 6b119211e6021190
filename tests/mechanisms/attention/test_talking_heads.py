"""Talking heads against loops over their equations, worked numbers, and what recording shows."""

import pytest
import torch
from torch import Tensor, nn

import mereo.mechanisms.attention.dense.talking_heads as room
from mereo.core import intervene, record
from mereo.errors import UsageError
from mereo.mechanisms.attention import MultiHeadAttention, TalkingHeadAttention
from mereo.mechanisms.attention.dense.talking_heads import MixedCoupling, mix_heads


def randomised(dim: int = 12, heads: int = 3, **options: object) -> TalkingHeadAttention:
    module = TalkingHeadAttention(dim, heads, **options).double().eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5)
    return module


def by_loops(module: TalkingHeadAttention, tokens: Tensor) -> Tensor:
    batch, count, dim = tokens.shape
    heads, size = module.num_heads, dim // module.num_heads
    q, k, v = module.qkv(tokens).split(dim, -1)
    merged = torch.zeros_like(tokens)
    for b in range(batch):
        for r in range(count):
            scores = torch.zeros(heads, count, dtype=tokens.dtype)
            for h in range(heads):
                part = slice(h * size, (h + 1) * size)
                for s in range(count):
                    scores[h, s] = torch.dot(q[b, r, part], k[b, s, part]) / size**0.5
            shares = torch.zeros_like(scores)
            for g in range(heads):
                mixed = sum(module.premix.weight[g, h] * scores[h] for h in range(heads)) + module.premix.bias[g]
                shares[g] = mixed.exp() / mixed.exp().sum()
            for g in range(heads):
                part = slice(g * size, (g + 1) * size)
                acts = sum(module.coupling.mix.weight[g, h] * shares[h] for h in range(heads))
                acts = acts + module.coupling.mix.bias[g]
                for s in range(count):
                    merged[b, r, part] += acts[s] * v[b, s, part]
    return module.proj(merged)


@pytest.mark.parametrize("heads", [1, 2, 3])
@torch.no_grad()
def test_equals_loops(heads: int) -> None:
    torch.manual_seed(heads)
    module = randomised(6, heads)
    tokens = torch.randn(2, 5, 6, dtype=torch.float64)
    expected = by_loops(module, tokens)
    torch.testing.assert_close(module(tokens), expected, rtol=1e-10, atol=1e-10)
    with torch.enable_grad():
        torch.testing.assert_close(module(tokens), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("block", [1, 50, 10**6])
def test_inference_in_blocks_is_the_same(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(room, "BLOCK", block)
    module, tokens = randomised(), torch.randn(2, 7, 12, dtype=torch.float64)
    blocks, run = [], module._exchange_in_blocks

    def counted(*qkv: Tensor) -> Tensor:
        blocks.append(1)
        return run(*qkv)

    monkeypatch.setattr(module, "_exchange_in_blocks", counted)
    expected = module(tokens)
    assert not blocks, "gradients need the maps"
    with torch.inference_mode():
        torch.testing.assert_close(module(tokens), expected)
        assert blocks == [1]
        with record(module):
            torch.testing.assert_close(module(tokens), expected)
        module(tokens, torch.ones(2, 7, dtype=torch.bool))
        assert blocks == [1], "neither where couplings are watched nor with a mask"


def test_worked_numbers_of_the_mixing() -> None:
    scores = torch.tensor([[[[1.0, 0], [0, 1]], [[0, 2], [1, 0]]]], dtype=torch.float64)
    before = nn.Linear(2, 2).double()
    with torch.no_grad():
        before.weight.copy_(torch.tensor([[1, 0.5], [0, 1]]))
        before.bias.zero_()
    mixed = mix_heads(before, scores)
    torch.testing.assert_close(mixed[0, 0], torch.tensor([[1, 1], [0.5, 1]], dtype=torch.float64))
    coupling = MixedCoupling(2).double()
    with torch.no_grad():
        coupling.mix.weight.copy_(torch.tensor([[1, 0], [0.5, 0.5]]))
        coupling.mix.bias.zero_()
    acts = coupling(mixed)[0]
    first = torch.tensor([[0.5, 0.5], [0.377541, 0.622459]], dtype=torch.float64)
    second = torch.tensor([[0.309601, 0.690399], [0.554300, 0.445700]], dtype=torch.float64)
    torch.testing.assert_close(acts, torch.stack((first, second)), atol=1e-6, rtol=0)


def test_without_mixing_it_is_multi_head_attention() -> None:
    torch.manual_seed(4)
    module, twin = TalkingHeadAttention(8, 2).eval(), MultiHeadAttention(8, 2).eval()
    with torch.no_grad():
        for linear in (module.premix, module.coupling.mix):
            linear.weight.copy_(torch.eye(2))
        module.qkv.weight.normal_(std=0.4)
        module.qkv.bias.normal_()
        weights, biases = (x.split(8) for x in (module.qkv.weight, module.qkv.bias))
        for part, weight, bias in zip((twin.query, twin.key, twin.value), weights, biases, strict=True):
            part.weight.copy_(weight)
            part.bias.copy_(bias)
        twin.proj.load_state_dict(module.proj.state_dict())
    tokens = torch.randn(2, 6, 8)
    torch.testing.assert_close(module(tokens), twin(tokens), atol=6e-8, rtol=1e-5)
    expected = module(tokens)
    with torch.no_grad():
        module.premix.bias.add_(torch.tensor([3.0, -2.0]))
    torch.testing.assert_close(module(tokens), expected, atol=2e-7, rtol=1e-5)


def test_what_is_recorded_is_what_acts() -> None:
    torch.manual_seed(5)
    module, tokens = randomised(6, 2), torch.randn(2, 4, 6, dtype=torch.float64)
    torch.nn.init.constant_(module.coupling.mix.bias, -1)
    with record(module) as trace:
        output = module(tokens)
    acts = trace["coupling"]
    assert acts.shape == (2, 2, 4, 4) and (acts < 0).any(), "mixed couplings may be negative"
    values = module.qkv(tokens).split(6, -1)[2].unflatten(-1, (2, 3)).transpose(1, 2)
    torch.testing.assert_close(module.proj((acts @ values).transpose(1, 2).flatten(2)), output)
    (scores,) = trace.scores("coupling")
    again = scores.softmax(-1)
    mixed = torch.einsum("gh,bhrs->bgrs", module.coupling.mix.weight, again) + module.coupling.mix.bias.view(2, 1, 1)
    torch.testing.assert_close(mixed, acts)
    with intervene(module, {"coupling": lambda c: torch.cat((c[:, :1], torch.zeros_like(c[:, 1:])), 1)}):
        changed = module(tokens)
    without = module.proj((acts[:, :1] @ values[:, :1]).transpose(1, 2).flatten(2) @ torch.eye(3, 6).double())
    torch.testing.assert_close(changed, without)


def test_dropout_acts_on_the_mixed_couplings() -> None:
    torch.manual_seed(6)
    module, tokens = randomised(6, 2, attn_drop=0.5), torch.randn(1, 9, 6, dtype=torch.float64)
    with record(module) as trace:
        module(tokens)
    with record(module.train()) as dropped:
        module(tokens)
    kept = dropped["coupling"] != 0
    assert 0.3 < kept.double().mean() < 0.7
    torch.testing.assert_close(dropped["coupling"][kept], 2 * trace["coupling"][kept])


def test_a_masked_pair_is_zero_in_spite_of_the_bias() -> None:
    module, tokens = randomised(6, 2), torch.randn(1, 4, 6, dtype=torch.float64)
    mask = torch.tensor([[[True, True, False, True], [False] * 4, [True] * 4, [True] * 4]])
    with record(module) as trace:
        output = module(tokens, mask)
    assert (trace["coupling"][:, :, ~mask[0]] == 0).all() and (trace["coupling"][:, :, mask[0]] != 0).all()
    torch.testing.assert_close(output[0, 1], module.proj.bias)


def test_refusals() -> None:
    with pytest.raises(UsageError, match="dim is 8 and num_heads 3"):
        TalkingHeadAttention(8, 3)
    with pytest.raises(UsageError, match="proj_drop is -1"):
        TalkingHeadAttention(8, 2, proj_drop=-1)
