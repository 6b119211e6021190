"""Mixer gating against its equations."""

import pytest
import torch
from torch import Tensor, nn

from mereo.errors import UsageError
from mereo.mechanisms.gate import MixerGate


def gate(dim: int = 3, num_tokens: int = 4, hidden_dim: int = 5) -> MixerGate:
    """In float64, with norms away from their start."""
    module = MixerGate(dim, num_tokens, hidden_dim).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def without_updates(module: MixerGate) -> MixerGate:
    for layer in (module.token_mixing.second, module.channel_mixing.second):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    return module


def by_loops(module: MixerGate, tokens: Tensor) -> Tensor:
    output = torch.empty_like(tokens)
    for b, z in enumerate(tokens):
        mixed, normed = z.clone(), torch.stack([module.token_norm(token) for token in z])
        for c in range(z.shape[1]):
            column = [normed[n, c] for n in range(len(z))]
            layer = module.token_mixing.first
            hidden = [
                nn.functional.gelu(sum(w * x for w, x in zip(row, column, strict=True)) + bias)
                for row, bias in zip(layer.weight, layer.bias, strict=True)
            ]
            layer = module.token_mixing.second
            for n in range(len(z)):
                mixed[n, c] += sum(w * h for w, h in zip(layer.weight[n], hidden, strict=True)) + layer.bias[n]
        for n in range(len(z)):
            first, second = module.channel_mixing.first, module.channel_mixing.second
            hidden = nn.functional.gelu(first.weight @ module.channel_norm(mixed[n]) + first.bias)
            factor = mixed[n] + second.weight @ hidden + second.bias
            output[b, n] = (module.proj.weight @ z[n] + module.proj.bias) * factor
    return output


def test_loops_give_the_same() -> None:
    module, tokens = gate(), torch.randn(2, 4, 3, dtype=torch.float64)
    torch.testing.assert_close(module(tokens), by_loops(module, tokens))


def test_without_updates_and_with_the_identity_it_squares() -> None:
    module, tokens = without_updates(gate()), torch.randn(2, 4, 3, dtype=torch.float64)
    nn.init.eye_(module.proj.weight)
    nn.init.zeros_(module.proj.bias)
    assert torch.equal(module(tokens), tokens * tokens)


def test_with_a_projection_of_one_it_is_the_mixer() -> None:
    module, tokens = gate(), torch.randn(2, 4, 3, dtype=torch.float64)
    nn.init.zeros_(module.proj.weight)
    nn.init.ones_(module.proj.bias)
    mixed = tokens + module.token_mixing(module.token_norm(tokens))
    assert torch.equal(module(tokens), mixed + module.channel_mixing(module.channel_norm(mixed)))


def test_tokens_move_with_the_weights_that_mix_them() -> None:
    module, tokens, order = gate(), torch.randn(2, 4, 3, dtype=torch.float64), torch.tensor([2, 0, 3, 1])
    expected = module(tokens)[:, order]
    with torch.no_grad():
        first, second = module.token_mixing.first, module.token_mixing.second
        first.weight.copy_(first.weight[:, order])
        second.weight.copy_(second.weight[order])
        second.bias.copy_(second.bias[order])
    torch.testing.assert_close(module(tokens[:, order]), expected)


def test_without_token_mixing_tokens_do_not_see_each_other() -> None:
    module, tokens = gate(), torch.randn(2, 4, 3, dtype=torch.float64)
    nn.init.zeros_(module.token_mixing.second.weight)
    other = tokens.clone()
    other[:, 1] += 1
    changed = (module(other) != module(tokens)).any(-1)
    assert changed[:, 1].all() and not changed[:, [0, 2, 3]].any()


def test_dropout_acts_in_training_only() -> None:
    module, tokens = MixerGate(3, 4, 8, dropout=0.5), torch.randn(2, 4, 3)
    assert not torch.equal(module(tokens), module(tokens))
    assert torch.equal(module.eval()(tokens), module(tokens))


def test_sizes_must_be_positive() -> None:
    with pytest.raises(UsageError, match="num_tokens"):
        MixerGate(4, 0, 8)
