"""Mixing matrices of modules: recorded couplings, Jacobians, and what a module says itself."""

import pytest
import torch
from torch import Tensor, nn

import mereo.catalogue  # noqa: F401
from mereo.core import get_mechanism
from mereo.errors import UsageError
from mereo.explain import mixing_facts, mixing_matrix, token_jacobian
from mereo.mechanisms.attention import MultiHeadAttention, NeighborhoodAttention
from mereo.mechanisms.gate import SqueezeExcite
from mereo.mechanisms.mixer import SpectralGating
from mereo.mechanisms.scan import LightningAttention

LENGTH, DIM = 12, 6


def tokens() -> Tensor:
    return torch.randn(2, LENGTH, DIM, dtype=torch.float64)


def test_matrices_of_our_mechanisms() -> None:
    x = tokens()
    attention = MultiHeadAttention(DIM, 2, causal=True).double()
    matrix = mixing_matrix(attention, x)
    assert matrix.shape == (2, 2, LENGTH, LENGTH)
    # The couplings are M of the template: values times them, projected, are the output.
    values = attention.value(x).unflatten(-1, (2, -1)).transpose(1, 2)
    torch.testing.assert_close(attention.proj((matrix @ values).transpose(1, 2).flatten(2)), attention(x))
    assert mixing_facts(attention, x).causal and mixing_facts(attention, x, how="jacobian").causal

    near = NeighborhoodAttention(DIM, 2, window=3, axes=1).double()
    band = (torch.arange(LENGTH).unsqueeze(1) - torch.arange(LENGTH)).abs() <= 2
    for how in ("couplings", "jacobian"):
        matrix = mixing_matrix(near, x, how=how)
        assert (matrix[..., ~band] == 0).all() and mixing_facts(near, x, how=how).filled == pytest.approx(3 / LENGTH)

    scan = LightningAttention(DIM, 2, block=4).double()
    assert mixing_facts(scan, x).causal and mixing_facts(scan, x).depends_on_input

    filters = SpectralGating(DIM, (3, 4)).double()
    facts = mixing_facts(filters, x)
    assert not facts.depends_on_input and not facts.causal
    # A circular convolution: every row of the map of token pairs is a shift of the first.
    matrix = mixing_matrix(filters, x)[0, 0].unflatten(0, (3, 4)).unflatten(-1, (3, 4))
    torch.testing.assert_close(matrix[2, 3].roll((-2, -3), (0, 1)), matrix[0, 0])

    gate = SqueezeExcite(DIM, 3).double()
    maps = torch.randn(2, DIM, 3, 3, dtype=torch.float64)
    assert mixing_matrix(gate, maps).shape == (2, 1, 9, 9) and mixing_facts(gate, maps).filled > 0.5


def test_every_attention_of_the_catalogue_gives_a_matrix() -> None:
    for name in ("multi_head", "hopfield", "halo", "block_attention", "talking_heads"):
        module, inputs = get_mechanism(name).example()
        matrix = mixing_matrix(module.eval(), *inputs)
        assert matrix.dim() == 4 and matrix.isfinite().all()


def test_one_of_several_couplings_by_name() -> None:
    model, x = nn.Sequential(MultiHeadAttention(DIM, 2), MultiHeadAttention(DIM, 3)).double(), tokens()
    assert mixing_matrix(model, x).shape[1] == 3
    assert mixing_matrix(model, x, name="0.coupling").shape[1] == 2
    with pytest.raises(UsageError, match="give one of them"):
        mixing_matrix(model, x, name="2.coupling")
    with pytest.raises(UsageError, match="no couplings"):
        mixing_matrix(nn.Linear(DIM, DIM).double(), x, how="couplings")


class Shift(nn.Module):
    """Moves tokens by one, and states its matrix."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens.roll(1, 1)

    def mixing_matrix(self, tokens: Tensor) -> Tensor:
        return torch.eye(tokens.shape[1], dtype=tokens.dtype).roll(1, 0).expand(len(tokens), 1, -1, -1)


def test_a_module_may_state_its_matrix_and_the_jacobian_agrees() -> None:
    matrices = [mixing_matrix(Shift(), tokens(), how=how) for how in ("auto", "jacobian")]
    torch.testing.assert_close(matrices[0] * DIM**0.5, matrices[1])


def test_bad_input() -> None:
    with pytest.raises(UsageError, match="how is"):
        mixing_matrix(nn.Identity(), tokens(), how="guess")
    with pytest.raises(UsageError, match="outputs a sample"):
        token_jacobian(nn.Identity(), torch.zeros(1, 300, 300))
    with pytest.raises(UsageError, match="token_axes"):
        token_jacobian(nn.Identity(), torch.zeros(3, 3))
