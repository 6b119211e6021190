"""Spectral gating against Fourier transforms written out, and what filters of known kernels do."""

import cmath
import math

import pytest
import torch
from torch import Tensor

from mereo.errors import UsageError
from mereo.mechanisms.mixer import SpectralGating
from mereo.mechanisms.mixer import spectral_gating as module

SIZES = [(4, 4), (3, 5), (5, 4), (1, 6), (2, 1), (18, 20)]
every_size = pytest.mark.parametrize("size", SIZES)


def gating(size: tuple[int, int], dim: int = 2) -> SpectralGating:
    gate = SpectralGating(dim, size).double()
    with torch.no_grad():
        gate.filter.normal_()
    return gate


def by_loops(tokens: Tensor, filter: Tensor, size: tuple[int, int]) -> Tensor:
    """Every frequency as a sum over cells; those that are not stored are conjugates of stored ones."""
    rows, columns = size
    maps, out = tokens.unflatten(1, size), torch.zeros_like(tokens).unflatten(1, size)
    for b in range(len(tokens)):
        for c in range(tokens.shape[2]):
            spectrum = {}
            for u in range(rows):
                for v in range(columns // 2 + 1):
                    total = 0j
                    for h in range(rows):
                        for w in range(columns):
                            turn = -2j * math.pi * (u * h / rows + v * w / columns)
                            total += maps[b, h, w, c].item() * cmath.exp(turn)
                    spectrum[u, v] = total * complex(*filter[u, v, c].tolist())
            for h in range(rows):
                for w in range(columns):
                    value = 0.0
                    for v in range(columns // 2 + 1):
                        line = sum(spectrum[u, v] * cmath.exp(2j * math.pi * u * h / rows) for u in range(rows))
                        single = v == 0 or 2 * v == columns
                        value += (1 if single else 2) * (line * cmath.exp(2j * math.pi * v * w / columns)).real
                    out[b, h, w, c] = value / (rows * columns)
    return out.flatten(1, 2)


@pytest.mark.parametrize("size", SIZES[:-1])
def test_loops_give_the_same(size: tuple[int, int]) -> None:
    gate, tokens = gating(size), torch.randn(1, size[0] * size[1], 2, dtype=torch.float64)
    torch.testing.assert_close(gate(tokens), by_loops(tokens, gate.filter, size))


@every_size
def test_matrices_and_transforms_agree_and_so_do_their_gradients(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, results = gating(size), []
    tokens = torch.randn(2, size[0] * size[1], 2, dtype=torch.float64, requires_grad=True)
    for limit in (0, 1000):
        monkeypatch.setattr(module, "MATRICES_UP_TO", limit)
        out = gate(tokens)
        results.append((out, *torch.autograd.grad(out.square().sum(), (tokens, gate.filter))))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def numbered() -> Tensor:
    """A map of 4 x 4 cells with the values 0 to 15, in one channel."""
    return torch.arange(16.0, dtype=torch.float64).view(1, 16, 1)


def filtered(filter: Tensor) -> Tensor:
    gate = SpectralGating(1, 4).double()
    with torch.no_grad():
        gate.filter.copy_(torch.view_as_real(filter.to(torch.complex128)).unsqueeze(2))
    return gate(numbered()).detach().view(4, 4)


def test_a_filter_of_one_changes_nothing_and_one_at_zero_gives_the_mean() -> None:
    torch.testing.assert_close(filtered(torch.ones(4, 3)).flatten(), numbered().flatten())
    mean_only = torch.zeros(4, 3)
    mean_only[0, 0] = 1
    torch.testing.assert_close(filtered(mean_only), torch.full((4, 4), 7.5, dtype=torch.float64))


def test_a_filter_of_turns_shifts_columns() -> None:
    turns = torch.exp(-2j * math.pi * torch.arange(3, dtype=torch.float64) / 4).expand(4, 3)
    torch.testing.assert_close(filtered(turns)[0], torch.tensor([3.0, 0, 1, 2], dtype=torch.float64))


def test_imaginary_parts_of_self_conjugate_frequencies_do_nothing() -> None:
    plain, still, other = (torch.ones(4, 3, dtype=torch.complex128) for _ in range(3))
    still[0, 0] += 5j
    other[1, 0] += 5j
    torch.testing.assert_close(filtered(still), filtered(plain))
    assert abs((filtered(other) - filtered(plain)).abs().max().item() - 10) < 1e-9


def test_it_is_a_circular_convolution_and_commutes_with_shifts() -> None:
    gate, tokens = gating((4, 5), 1), torch.randn(1, 20, 1, dtype=torch.float64)
    kernel = torch.fft.irfft2(torch.view_as_complex(gate.filter[:, :, 0].detach()), s=(4, 5))
    maps, out = tokens.view(4, 5), gate(tokens).view(4, 5)
    expected = sum(kernel[h, w] * maps.roll((h, w), (0, 1)) for h in range(4) for w in range(5))
    torch.testing.assert_close(out, expected)
    rolled = maps.roll((1, 2), (0, 1)).reshape(1, 20, 1)
    torch.testing.assert_close(gate(rolled).view(4, 5), out.roll((1, 2), (0, 1)))


def test_filters_of_modulus_one_keep_the_norm_of_each_channel() -> None:
    gate, tokens = gating((4, 6), 3), torch.randn(2, 24, 3, dtype=torch.float64)
    with torch.no_grad():
        phases = 2 * math.pi * torch.rand(4, 4, 3, dtype=torch.float64)
        for v in (0, 3):
            for u in range(4):
                phases[-u % 4, v] = 0 if -u % 4 == u else -phases[u, v]
        gate.filter.copy_(torch.stack((phases.cos(), phases.sin()), -1))
    torch.testing.assert_close(gate(tokens).norm(dim=1), tokens.norm(dim=1))


def test_maps_of_another_size() -> None:
    gate, tokens = SpectralGating(2, 4), torch.randn(1, 42, 2)
    with torch.no_grad():
        gate.filter.copy_(torch.tensor([0.5, 0.0]).expand_as(gate.filter))
    torch.testing.assert_close(gate(tokens, (6, 7)), tokens / 2)
    assert gate.gains((4, 4)) is gate.filter
    with pytest.raises(UsageError, match="the map is 4 x 4"):
        gate(tokens)


@pytest.mark.parametrize("size", [(4, 4), (17, 17)])
def test_autocast_computes_in_float32(size: tuple[int, int]) -> None:
    gate, tokens = SpectralGating(2, size), torch.randn(1, size[0] * size[1], 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(gate(tokens), gate(tokens).float()) and gate(tokens.bfloat16()).dtype == torch.bfloat16
        inside = gate(tokens)
    assert torch.equal(inside, gate(tokens))


@pytest.mark.parametrize("size", [(4, 6), (5, 7), (3, 4)])
def test_the_spectrum_is_that_of_the_circular_convolution(size: tuple[int, int]) -> None:
    gating = SpectralGating(3, size).double()
    # A real kernel has a spectrum of conjugate pairs also where the filter is real by itself: at zero and at the end.
    kernel = torch.fft.irfft2(torch.view_as_complex(gating.filter.detach()).permute(2, 0, 1), s=size)
    gating.filter.data = torch.view_as_real(torch.fft.rfft2(kernel).permute(1, 2, 0).contiguous())
    expected = torch.fft.fftshift(torch.fft.fft2(kernel).abs(), dim=(1, 2))
    torch.testing.assert_close(gating.spectrum(), expected)


def test_an_empty_batch_of_a_large_map() -> None:
    assert SpectralGating(96, (56, 56))(torch.zeros(0, 56 * 56, 96)).shape == (0, 56 * 56, 96)
