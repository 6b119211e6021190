"""Mixers as one recurrence: worked numbers, the gauge, Taylor features of softmax, kernels, models and bad input."""

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn

import mereo
from mereo.core import Causal, Coupling
from mereo.core.recurrence import Recurrence, normalised, softmax_recurrence, taylor_features
from mereo.errors import UsageError
from mereo.mechanisms.attention import MultiHeadAttention
from mereo.mechanisms.scan import SSD, NormalisedAttention
from mereo.models.sequence.causal_transformer import RotaryBlock


def column(*values: float) -> torch.Tensor:
    """Numbers of successive tokens: (1, 1, tokens, 1), float64."""
    return torch.tensor(values, dtype=torch.float64).view(1, 1, -1, 1)


def of(mixer: nn.Module, tokens: torch.Tensor, **options: Any) -> Recurrence:
    made = mereo.recurrence(mixer, tokens, **options)
    assert isinstance(made, Recurrence)
    return made


@pytest.mark.parametrize("method", ["blocks", "recurrent"])
def test_worked_numbers(method: str) -> None:
    made = Recurrence(column(1, 0.5, 0.5).log(), column(1, 2, -1), column(1, 1, 2), column(1, 1, 1))
    y, last = made.scan(method=method)
    torch.testing.assert_close(y, column(1, 2.5, 0.5), rtol=0, atol=1e-12)
    torch.testing.assert_close(last.flatten(), torch.tensor([0.25], dtype=torch.float64))
    kernel = torch.tensor([[1, 0, 0], [0.5, 2, 0], [0.5, 2, -2]], dtype=torch.float64)
    torch.testing.assert_close(made.kernel()[0, 0], kernel)
    skipped = dataclasses.replace(made, D=torch.full((1, 1, 1), 3.0))
    torch.testing.assert_close(skipped.scan(method=method)[0], column(4, 5.5, 3.5))


def test_linear_attention_of_three_numbers() -> None:
    phi, psi = (torch.nn.functional.elu(x) + 1 for x in (column(0, 1, -1), column(0, 1, 0)))
    eta = phi * psi.cumsum(2)
    torch.testing.assert_close(eta, column(1, 6, 1.4715), rtol=0, atol=5e-5)
    made = normalised(phi, psi, column(1, 2, 3), eta.log())
    torch.testing.assert_close(made.Lambda, column(1, 1 / 6, 4.0774), rtol=0, atol=5e-5)
    torch.testing.assert_close(made.run(), column(1, 5 / 3, 2))


def test_a_sequence_of_factors_moves_from_the_state_to_the_readout() -> None:
    mixer, tokens = NormalisedAttention(8, 2).double(), torch.randn(2, 9, 8, dtype=torch.float64)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    made = of(mixer, tokens)
    eta = mixer.log_eta(tokens).exp()
    plain = dataclasses.replace(made, log_lambda=torch.zeros_like(made.log_lambda), B=made.B * eta, C=made.C / eta)
    assert (made.Lambda - 1).abs().max() > 0.1
    torch.testing.assert_close(plain.run(), mixer(tokens), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(plain.kernel(), made.kernel(), rtol=1e-9, atol=1e-12)


def test_a_state_space_is_attention_whose_normaliser_only_grows() -> None:
    """Linear attention with psi = Delta b eta and eta_i = exp(a sum_{j<=i} Delta_j) has the terms of SSD."""
    tokens, ssd = torch.randn(2, 12, 8, dtype=torch.float64), SSD(8, 2, state_dim=3).double()
    made = of(ssd, tokens)
    log_eta = -made.log_lambda.cumsum(2)
    attention = normalised(made.C, made.B * log_eta.exp(), made.u, log_eta)
    torch.testing.assert_close(attention.log_lambda, made.log_lambda)
    torch.testing.assert_close(made.outputs(attention.run() + made.D * made.u), ssd(tokens))
    assert (made.Lambda < 1).all() and (log_eta.diff(dim=2) > 0).all()


def test_features_have_the_products_of_the_taylor_polynomial() -> None:
    x, z = torch.randn(2, 5, 3, dtype=torch.float64)
    for degree in (1, 2, 5):
        features = taylor_features(x, degree)
        assert features.shape == (5, math.comb(3 + degree, degree))
        products = x @ z.T
        expected = sum(products**p / math.factorial(p) for p in range(degree + 1))
        torch.testing.assert_close(features @ taylor_features(z, degree).T, expected)


def test_softmax_attention_by_more_and_more_features() -> None:
    torch.manual_seed(0)
    attention, tokens = MultiHeadAttention(8, 1, qk_dim=2, causal=True), torch.randn(2, 10, 8)
    for layer in (attention.query, attention.key, attention.value, attention.proj):
        layer.reset_parameters()
    for degree, expected in {1: 4.6e-2, 2: 1.5e-2, 4: 1.2e-3, 8: 1.3e-6}.items():
        error = of(attention, tokens[:1], degree=degree).error
        assert error is not None and expected / 4 < error < 4 * expected
    kernel = of(attention, tokens, degree=8).kernel()
    torch.testing.assert_close(kernel.sum(-1), torch.ones_like(kernel[..., 0]), rtol=0, atol=1e-5)
    assert (kernel.triu(1) == 0).all() and (kernel.diagonal(dim1=-2, dim2=-1) > 0).all()


def test_the_softmax_attention_of_a_decoder_has_a_recurrence() -> None:
    torch.manual_seed(0)
    block = RotaryBlock(8, 2, 12, dropout=0.5)
    with torch.no_grad():
        block.qkv.weight.normal_(std=0.3)
    tokens = torch.randn(2, 10, 8)
    errors = [of(block.train(), tokens, degree=degree).error for degree in (2, 4, 6, 8)]
    assert all(later < earlier / 2 for earlier, later in itertools.pairwise(errors)) and errors[-1] < 1e-4, errors
    made = of(block, tokens)
    torch.testing.assert_close(made.run(), block.eval()(tokens), rtol=0, atol=1e-4)
    # The shares are the couplings of queries and keys that are turned.
    with mereo.record(block) as trace:
        block(tokens)
    torch.testing.assert_close(made.kernel().float(), trace["coupling"], rtol=0, atol=1e-4)
    block.rotary = False
    assert (of(block, tokens).kernel() - made.kernel()).abs().max() > 1e-3


def test_a_decoder_gives_the_recurrence_of_every_block() -> None:
    arguments = {"dim": 12, "depth": 2, "num_heads": 3, "vocab_size": 11}
    model, tokens = mereo.create_model("causal_transformer_tiny", **arguments), torch.randint(11, (2, 7))
    found = mereo.recurrence(model.train(), tokens)
    assert isinstance(found, dict) and list(found) == ["blocks.0", "blocks.1"] and model.training
    assert all(made.error is not None and made.error < 1e-5 for made in found.values())
    with pytest.raises(UsageError, match="features of 16 channels; give at most 4"):
        mereo.recurrence(mereo.create_model("causal_transformer_tiny"), tokens)
    biased = mereo.create_model("causal_transformer_tiny", **arguments, positions={"distance": "harmonic"})
    with pytest.raises(UsageError, match="distance is 'harmonic'"):
        mereo.recurrence(biased, tokens)
    other = RotaryBlock(8, 2, 12)
    other.coupling = Coupling("receivers", topology=Causal())
    with pytest.raises(UsageError, match="causal softmax"):
        other.recurrence(torch.randn(1, 3, 8))


def test_the_recurrences_of_a_network_by_name() -> None:
    model = mereo.create_model(
        "causal_transformer_tiny", dim=12, depth=2, num_heads=3, vocab_size=11, mechanism="ssd", dropout=0.5
    )
    tokens = torch.randint(11, (2, 7))
    found = mereo.recurrence(model.train(), tokens)
    assert isinstance(found, dict) and list(found) == ["blocks.0.mixer", "blocks.1.mixer"] and model.training
    for made in found.values():
        assert made.error is not None and made.error < 1e-6 and made.u.shape == (2, 3, 7, 4)
        assert (made.kernel().triu(1) == 0).all()


def test_bad_input() -> None:
    with pytest.raises(UsageError, match="without a mixer"):
        mereo.recurrence(nn.Linear(3, 3), torch.randn(2, 3))
    with pytest.raises(UsageError, match="causal"):
        mereo.recurrence(MultiHeadAttention(8, 2), torch.randn(2, 5, 8))
    with pytest.raises(UsageError, match="mask"):
        mereo.recurrence(NormalisedAttention(8), (torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)))
    with pytest.raises(UsageError, match="features"):
        taylor_features(torch.randn(2, 64), 8)
    with pytest.raises(UsageError, match="negative"):
        softmax_recurrence(column(3, 3), column(-3, -3), column(1, 1), degree=1)
    with pytest.raises(UsageError, match="degree"):
        taylor_features(torch.randn(2, 2), 0)
