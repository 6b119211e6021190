"""The template of token mixers: fast products against explicit matrices, facts, Jacobians, pictures."""

import pytest
import torch
from torch import Tensor, nn

import mereo.catalogue  # noqa: F401
from mereo.core import get_mechanism
from mereo.errors import UsageError
from mereo.mechanisms.attention import MultiHeadAttention, NeighborhoodAttention
from mereo.mechanisms.gate import SqueezeExcite
from mereo.mechanisms.mixer import SpectralGating
from mereo.mechanisms.mixer.template import (
    INSTANCES,
    ConvolutionMix,
    FourierMix,
    FourierValue,
    KernelMix,
    LearnedMix,
    LowRankMix,
    Mix,
    PoolingMix,
    StateSpaceMix,
    TokenMixer,
    draw_mixing_matrices,
    make_mixer,
    mixing_facts,
    mixing_matrix,
    multiply,
    token_jacobian,
)
from mereo.mechanisms.scan import LightningAttention

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
    torch.testing.assert_close(made.mix.apply(x, values), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", INSTANCES)
def test_facts_of_the_taxonomy(name: str) -> None:
    made = mixer(name)
    facts = mixing_facts(made, tokens())
    assert facts.depends_on_input == made.mix.depends_on_input
    assert facts.rank <= made.mix.rank_bound(LENGTH)
    assert facts.causal == (name in ("causal attention", "causal linear attention", "decay", "state space", "identity"))
    normalised = ("attention", "linear attention", "random features", "pooling", "identity")
    assert facts.rows_sum_to_one == name.endswith(normalised)
    assert made.mix.complexity(64, DIM) > 0
    filled = {"identity": 1 / LENGTH, "local attention": 5 / LENGTH, "pooling": (5 * LENGTH - 6) / LENGTH**2}
    assert facts.filled == pytest.approx(filled.get(name, facts.filled))


def test_ranks_below_the_number_of_tokens() -> None:
    assert mixing_facts(mixer("low rank"), tokens()).rank == LowRankMix(DIM, 2, LENGTH, 3).rank_bound(LENGTH) == 3
    assert mixing_facts(mixer("linear attention"), tokens()).rank == KernelMix(DIM, 2).rank_bound(LENGTH) == 3
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


def test_matrices_of_our_mechanisms() -> None:
    x = tokens()
    attention = MultiHeadAttention(DIM, 2, causal=True).double()
    matrix = mixing_matrix(attention, x)
    assert matrix.shape == (2, 2, LENGTH, LENGTH)
    # The couplings are M of the template: values times them, projected, are the output.
    torch.testing.assert_close(attention.proj(multiply(matrix, attention.value(x))), attention(x))
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


def test_modules_can_still_apply_a_function() -> None:
    seen = []
    made = mixer("attention")
    assert made.mix.apply(lambda module: seen.append(type(module).__name__)) is made.mix
    assert "Linear" in seen and seen[-1] == "SoftmaxMix"


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
    with pytest.raises(UsageError, match="how is"):
        mixing_matrix(nn.Identity(), tokens(), how="guess")
    with pytest.raises(UsageError, match="outputs a sample"):
        token_jacobian(nn.Identity(), torch.zeros(1, 300, 300))
    with pytest.raises(UsageError, match="token_axes"):
        token_jacobian(nn.Identity(), torch.zeros(3, 3))
    with pytest.raises(TypeError):
        Mix()


def test_the_picture(tmp_path) -> None:
    x = tokens()
    matrices = {name: mixing_matrix(mixer(name), x) for name in ("attention", "fourier", "convolution", "identity")}
    draw_mixing_matrices(matrices, "mixing matrices", tmp_path / "mixing.png")
    assert (tmp_path / "mixing.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="empty"):
        draw_mixing_matrices({}, "nothing", tmp_path / "nothing.png")
