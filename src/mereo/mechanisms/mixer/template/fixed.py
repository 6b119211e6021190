"""Mixing matrices that do not depend on the tokens: learned, Fourier, convolutions, state spaces, averages."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.errors import UsageError, check_positive
from mereo.mechanisms.mixer.template.base import Mix


def _toeplitz(kernel: Tensor, length: int, first: int) -> Tensor:
    """M[t, s] = kernel[t - s - first], 0 outside: (dim, size) -> (dim, length, length)."""
    t = torch.arange(length, device=kernel.device)
    tap = t.unsqueeze(1) - t - first
    there = (tap >= 0) & (tap < kernel.shape[1])
    return kernel[:, tap.clamp(0, kernel.shape[1] - 1)] * there


class LearnedMix(Mix):
    """A learned matrix, as in MLP-Mixer (arXiv:2105.01601), gMLP and the random synthesizer: M = W.

    Args:
        length: number of tokens.
    """

    depends_on_input = False

    def __init__(self, length: int) -> None:
        super().__init__()
        check_positive(length=length)
        self.weight = nn.Parameter(torch.randn(length, length) * length**-0.5)

    def matrix(self, tokens: Tensor) -> Tensor:
        return self.weight

    def product(self, tokens: Tensor, values: Tensor) -> Tensor:
        if values.shape[1] != len(self.weight):
            raise UsageError(f"there are {values.shape[1]} tokens; the weights are for {len(self.weight)}.")
        return self.weight @ values

    def complexity(self, length: int, dim: int) -> int:
        return length**2 * dim


def fourier_matrix(length: int, like: Tensor) -> Tensor:
    """The discrete Fourier transform as a matrix: exp(-2 pi i t s / L), complex (length, length)."""
    eye = torch.eye(length, dtype=like.real.dtype, device=like.device)
    return torch.fft.fft(eye)


class FourierMix(Mix):
    """The Fourier transform along the tokens (FNet, arXiv:2105.03824): M = F_L, complex.

    With `FourierValue` and `norm=torch.real`, a `TokenMixer` is FNet's: Y = Re(F_L X F_D).
    """

    depends_on_input = False

    def matrix(self, tokens: Tensor) -> Tensor:
        return fourier_matrix(tokens.shape[1], tokens)

    def product(self, tokens: Tensor, values: Tensor) -> Tensor:
        return torch.fft.fft(values, dim=1)

    def complexity(self, length: int, dim: int) -> int:
        return length * max(1, (length - 1).bit_length()) * dim


class FourierValue(nn.Module):
    """The Fourier transform along the channels: V = X F_D."""

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.fft.fft(tokens, dim=-1)


class ConvolutionMix(Mix):
    """A convolution along the tokens, with a kernel for each channel: M_c is Toeplitz.

    Args:
        dim: channels.
        size: taps of the kernel.
        causal: whether a token is mixed with those before it only; otherwise the kernel is centred.
    """

    depends_on_input = False

    def __init__(self, dim: int, size: int = 3, causal: bool = False) -> None:
        super().__init__()
        check_positive(dim=dim, size=size)
        self.first = 0 if causal else -(size // 2)
        self.weight = nn.Parameter(torch.randn(dim, size) * size**-0.5)

    def matrix(self, tokens: Tensor) -> Tensor:
        return _toeplitz(self.weight, tokens.shape[1], self.first)

    def product(self, tokens: Tensor, values: Tensor) -> Tensor:
        dim, size = self.weight.shape
        padded = F.pad(values.transpose(1, 2), (size - 1 + self.first, -self.first))
        return F.conv1d(padded, self.weight.flip(1).unsqueeze(1), groups=dim).transpose(1, 2)

    def complexity(self, length: int, dim: int) -> int:
        return length * self.weight.shape[1] * dim


class FilterMix(Mix):
    """A filter of all frequencies for each channel (GFNet, arXiv:2107.00645): M_c = F^-1 diag(g_c) F, circulant.

    Args:
        dim: channels.
        length: number of tokens.
    """

    depends_on_input = False

    def __init__(self, dim: int, length: int) -> None:
        super().__init__()
        check_positive(dim=dim, length=length)
        self.length = length
        self.gains = nn.Parameter(torch.randn(dim, length // 2 + 1, 2))

    def matrix(self, tokens: Tensor) -> Tensor:
        kernel = torch.fft.irfft(torch.view_as_complex(self.gains), n=self.length)
        t = torch.arange(self.length, device=kernel.device)
        return kernel[:, (t.unsqueeze(1) - t) % self.length]

    def product(self, tokens: Tensor, values: Tensor) -> Tensor:
        gains = torch.view_as_complex(self.gains).T
        return torch.fft.irfft(torch.fft.rfft(values, dim=1) * gains, n=self.length, dim=1)

    def complexity(self, length: int, dim: int) -> int:
        return 2 * length * max(1, (length - 1).bit_length()) * dim


class StateSpaceMix(Mix):
    """A diagonal state space for each channel (S4 family): M_c[t, s] = sum_n c_n a_n^(t - s) b_n for s <= t.

    h_t = a h_(t-1) + b x_t,   y_t = c . h_t

    Args:
        dim: channels.
        states: numbers of the state of a channel.
    """

    depends_on_input = False

    def __init__(self, dim: int, states: int = 1) -> None:
        super().__init__()
        check_positive(dim=dim, states=states)
        self.decay = nn.Parameter(torch.linspace(0.5, 0.95, dim * states).view(dim, states))
        self.read = nn.Parameter(torch.ones(dim, states))
        self.write = nn.Parameter(torch.randn(dim, states) * states**-0.5)

    def matrix(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        powers = self.decay.unsqueeze(-1) ** torch.arange(length, device=tokens.device)
        kernel = ((self.write * self.read).unsqueeze(-1) * powers).sum(1)
        return _toeplitz(kernel, length, 0)

    def product(self, tokens: Tensor, values: Tensor) -> Tensor:
        state = values.new_zeros(len(values), *self.decay.shape)
        outputs = []
        for value in values.unbind(1):
            state = self.decay * state + self.read * value.unsqueeze(-1)
            outputs.append((self.write * state).sum(-1))
        return torch.stack(outputs, 1)

    def complexity(self, length: int, dim: int) -> int:
        return 3 * length * dim * self.decay.shape[1]


class PoolingMix(Mix):
    """The mean of the tokens around each (PoolFormer, arXiv:2111.11418): M is a band, rows sum to one.

    Args:
        size: tokens of the window, odd; 1 is the identity. At the ends of the sequence it is cut off.
    """

    depends_on_input = False

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        check_positive(size=size)
        if size % 2 == 0:
            raise UsageError(f"size is {size}; it must be odd, so that the window has a middle.")
        self.size = size

    def matrix(self, tokens: Tensor) -> Tensor:
        t = torch.arange(tokens.shape[1], device=tokens.device)
        band = ((t.unsqueeze(1) - t).abs() <= self.size // 2).to(tokens.dtype)
        return band / band.sum(1, keepdim=True)

    def product(self, tokens: Tensor, values: Tensor) -> Tensor:
        moved = values.transpose(1, 2)
        return F.avg_pool1d(moved, self.size, 1, self.size // 2, count_include_pad=False).transpose(1, 2)

    def complexity(self, length: int, dim: int) -> int:
        return length * self.size * dim
