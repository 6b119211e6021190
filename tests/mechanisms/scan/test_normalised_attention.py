"""Normalised attention: loops in float64 from the equations for each normaliser, counts, masks and bad input."""

import pytest
import torch

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.scan import NormalisedAttention
from mereo.mechanisms.scan.normalised_attention import NORMALISERS

every_normaliser = pytest.mark.parametrize("normaliser", NORMALISERS)


def made(normaliser: str) -> NormalisedAttention:
    layer = NormalisedAttention(6, 2, qk_dim=8, normaliser=normaliser, block=3).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return layer


@every_normaliser
def test_the_layer_equals_its_equations(normaliser: str) -> None:
    layer, u = made(normaliser), torch.randn(2, 7, 6, dtype=torch.float64)
    joined, values = layer.query_key(u), layer.value(u)
    mixed = torch.zeros(2, 7, 6, dtype=torch.float64)
    for b in range(2):
        for head in range(2):
            q, k = (joined[b, :, start : start + 4] for start in (4 * head, 8 + 4 * head))
            if normaliser == "sum":
                q, k = (torch.where(x > 0, x + 1, x.exp()) for x in (q, k))
            for i in range(7):
                weights = [q[i] @ k[j] for j in range(i + 1)]
                n = None if layer.norm is None else layer.norm(u[b, i])[head]
                eta = {
                    "exp": lambda n: n.exp(), "softplus": lambda n: (1 + n.exp()).log(),
                    "sigmoid": lambda n: 1 / (1 + (-n).exp()), "sum": lambda n, w=weights: sum(w),
                }[normaliser](n)  # fmt: skip
                own = slice(3 * head, 3 * head + 3)
                mixed[b, i, own] = sum(w * values[b, j, own] for j, w in enumerate(weights)) / eta
    torch.testing.assert_close(layer(u), layer.proj(mixed))


@every_normaliser
def test_its_recurrence_is_exact(normaliser: str) -> None:
    layer, u = made(normaliser), torch.randn(2, 7, 6, dtype=torch.float64)
    recurrence = mereo.recurrence(layer, u)
    assert isinstance(recurrence, mereo.Recurrence)
    assert recurrence.error is not None and recurrence.error < 1e-9
    kernel = recurrence.kernel()
    if normaliser == "sum":
        torch.testing.assert_close(kernel.sum(-1), torch.ones_like(kernel[..., 0]))
        assert (kernel >= 0).all()
    else:
        assert (kernel < 0).any()


def test_parameters() -> None:
    counts = {
        normaliser: sum(p.numel() for p in NormalisedAttention(8, qk_dim=4, normaliser=normaliser).parameters())
        for normaliser in NORMALISERS
    }
    assert counts == {"exp": 225, "softplus": 225, "sigmoid": 225, "sum": 216}
    softmax = mereo.create_mechanism("multi_head", 8, heads=1, qk_dim=4, causal=True)
    assert sum(p.numel() for p in softmax.parameters()) == 216


@every_normaliser
def test_tokens_one_by_one_and_large_and_zero_inputs(normaliser: str) -> None:
    layer, u = made(normaliser).float(), torch.randn(2, 9, 6)
    state, parts = None, []
    for token in u.unbind(1):
        out, state = layer.step(token, state)
        parts.append(out)
    torch.testing.assert_close(torch.stack(parts, 1), layer(u), rtol=1e-4, atol=1e-5)
    for factor in (0.0, 1e4, -1e4):
        assert layer(factor * u).isfinite().all()
    nothing = layer(u, torch.zeros(2, 9, dtype=torch.bool))
    torch.testing.assert_close(nothing, layer.proj.bias.expand(2, 9, 6))


def test_bad_input() -> None:
    with pytest.raises(UsageError, match="normaliser"):
        NormalisedAttention(8, normaliser="softmax")
    with pytest.raises(UsageError, match="qk_dim"):
        NormalisedAttention(8, 2, qk_dim=3)
