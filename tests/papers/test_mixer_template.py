"""The template of token mixers: fast products against explicit matrices, facts, Jacobians, pictures."""

import pytest
import torch
from torch import Tensor

from mereo.errors import UsageError
from mereo.explain import draw_mixing_matrices, mixing_facts, mixing_matrix, token_jacobian
from papers.unified_view.mixer_template import (
    INSTANCES,
    ConvolutionMix,
    FourierMix,
    FourierValue,
    KernelMix,
    LearnedMix,
    Mix,
    PoolingMix,
    StateSpaceMix,
    TokenMixer,
    make_mixer,
    multiply,
)

LENGTH, DIM = 12, 6


def tokens() -> Tensor:
    return torch.randn(2, LENGTH, DIM, dtype=torch.float64)


def mixer(name: str) -> TokenMixer:
    return make_mixer(name, LENGTH, DIM).double()


@pytest.mark.parametrize("name", INSTANCES)
def test_matrix_times_values_equals_the_fast_product(name: str) -> None:
    made, x = mixer(name), tokens()
    torch.testing.assert_close(made(x), made.explicit(x), rtol=1e-12, atol=1e-12)
    values = torch.randn_like(x)
    expected = multiply(made.mix.matrix(x), values.to(made.mix.matrix(x).dtype))
    torch.testing.assert_close(made.mix(x, values), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", INSTANCES)
def test_facts_of_the_taxonomy(name: str) -> None:
    made = mixer(name)
    facts = mixing_facts(made, tokens())
    attention = ("attention", "random features", "low rank", "decay")
    assert facts.depends_on_input == name.endswith(attention)
    assert facts.causal == (name in ("causal attention", "causal linear attention", "decay", "state space", "identity"))
    normalised = ("attention", "linear attention", "random features", "pooling", "identity")
    assert facts.rows_sum_to_one == name.endswith(normalised)
    filled = {"identity": 1 / LENGTH, "local attention": 5 / LENGTH, "pooling": (5 * LENGTH - 6) / LENGTH**2}
    assert facts.filled == pytest.approx(filled.get(name, facts.filled))


def test_ranks_below_the_number_of_tokens() -> None:
    assert mixing_facts(mixer("low rank"), tokens()).rank == mixing_facts(mixer("linear attention"), tokens()).rank == 3
    assert mixing_facts(mixer("random features"), tokens()).rank == 4


def test_fnet() -> None:
    x = tokens()
    made = TokenMixer(FourierMix(), FourierValue(), torch.real)
    torch.testing.assert_close(made.explicit(x), torch.fft.fft2(x).real, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(made(x), torch.fft.fft2(x).real)


def test_convolution_is_a_toeplitz_matrix_for_each_channel() -> None:
    for causal in (False, True):
        made = ConvolutionMix(DIM, 3, causal).double()
        x, expected = tokens(), torch.zeros(2, LENGTH, DIM, dtype=torch.float64)
        for t in range(LENGTH):
            for tap in range(3):
                s = t - tap + (0 if causal else 1)
                if 0 <= s < LENGTH:
                    expected[:, t] += made.weight[:, tap] * x[:, s]
        assert made.matrix(x).shape == (DIM, LENGTH, LENGTH)
        torch.testing.assert_close(made(x, x), expected)


def test_scalar_state_space() -> None:
    made = StateSpaceMix(1).double()
    with torch.no_grad():
        for parameter, value in ((made.decay, 0.9), (made.read, 0.5), (made.write, 2.0)):
            parameter.fill_(value)
    x = torch.randn(1, 7, 1, dtype=torch.float64)
    state, expected = 0.0, []
    for value in x.flatten().tolist():
        state = 0.9 * state + 0.5 * value
        expected.append(2 * state)
    torch.testing.assert_close((made.matrix(x)[0] @ x[0]).flatten(), torch.tensor(expected, dtype=torch.float64))
    assert made.matrix(x)[0, 3, 1].item() == pytest.approx(2 * 0.9**2 * 0.5)


def test_jacobian_of_linear_mixers_is_the_matrix_itself() -> None:
    x = tokens()
    for name in ("convolution", "global filter", "state space", "pooling"):
        made = mixer(name)
        jacobian = token_jacobian(made, x)
        assert jacobian.shape == (2, LENGTH, DIM, LENGTH, DIM)
        matrix = made.mix.matrix(x).expand(DIM, LENGTH, LENGTH)
        for d in range(DIM):
            torch.testing.assert_close(jacobian[0, :, d, :, d], matrix[d])
        assert jacobian[:, :, 0, :, 1].abs().max() == 0
    learned = TokenMixer(LearnedMix(LENGTH)).double()
    norms = mixing_matrix(learned, x, how="jacobian")[0, 0]
    torch.testing.assert_close(norms, learned.mix.weight.detach().abs() * DIM**0.5)


def test_bad_input() -> None:
    with pytest.raises(UsageError, match="unknown token mixer"):
        make_mixer("magic", 4, 4)
    with pytest.raises(UsageError, match="must be odd"):
        PoolingMix(4)
    with pytest.raises(UsageError, match="12 tokens"):
        LearnedMix(5).double()(tokens(), tokens())
    with pytest.raises(UsageError, match="multiple of num_heads"):
        make_mixer("attention", 4, 5)
    with pytest.raises(UsageError, match="features is 'cosine'"):
        KernelMix(4, 2, "cosine")
    with pytest.raises(TypeError):
        Mix()


def test_the_picture(tmp_path) -> None:
    x = tokens()
    matrices = {name: mixing_matrix(mixer(name), x) for name in ("attention", "fourier", "convolution", "identity")}
    draw_mixing_matrices(matrices, "mixing matrices", tmp_path / "mixing.png")
    assert (tmp_path / "mixing.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="empty"):
        draw_mixing_matrices({}, "nothing", tmp_path / "nothing.png")
