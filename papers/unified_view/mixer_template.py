"""The template of token mixers: Y = out(norm(M(X) V(X))), of which attention, convolution and scans are instances.

Source: arXiv:2302.06218.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Causal, Coupling, Neighborhood, Topology
from mereo.core.kernels.attention import attend
from mereo.core.kernels.linear_scan import Scan, linear_scan
from mereo.errors import UsageError, check_choice, check_heads, check_positive, check_probability, unknown


def multiply(matrix: Tensor, values: Tensor) -> Tensor:
    """M V for the three kinds of mixing matrices.

    Shapes: matrix (tokens, tokens), (batch, heads, tokens, tokens) or (dim, tokens, tokens), one for each channel;
        values (batch, tokens, dim), of which each head has a part -> (batch, tokens, dim).
    """
    if matrix.dim() == 2:
        return matrix @ values
    if matrix.dim() == 3:
        return torch.einsum("dts,bsd->btd", matrix, values)
    parts = values.unflatten(-1, (matrix.shape[1], -1)).transpose(1, 2)
    return (matrix @ parts).transpose(1, 2).flatten(2)


class Mix(nn.Module, ABC):
    """How tokens are mixed: a matrix, and a faster way to multiply by it."""

    @abstractmethod
    def matrix(self, tokens: Tensor) -> Tensor:
        """The mixing matrix itself, to inspect or draw it.

        Shapes: tokens (batch, tokens, dim) -> (tokens, tokens), (batch, heads, tokens, tokens), or one for each
            channel, (dim, tokens, tokens).
        """

    @abstractmethod
    def forward(self, tokens: Tensor, values: Tensor) -> Tensor:
        """M(tokens) values, without the matrix where that is faster: (batch, tokens, dim) -> the same."""


class TokenMixer(nn.Module):
    """Mix tokens: Y = out(norm(M(X) V(X))).

    Args:
        mix: M.
        value: V, a module or function; the tokens themselves by default.
        norm: what is done with the product, such as a norm, or the real part of complex numbers.
        out: the projection of the output.

    Shapes: (batch, tokens, dim) -> (batch, tokens, dim of the values).

    Reference: arXiv:2302.06218.
    """

    def __init__(
        self,
        mix: Mix,
        value: Callable[[Tensor], Tensor] | None = None,
        norm: Callable[[Tensor], Tensor] | None = None,
        out: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.mix = mix
        self.value, self.norm, self.out = (nn.Identity() if f is None else f for f in (value, norm, out))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.norm(self.mix(tokens, self.value(tokens))))

    def mixing_matrix(self, tokens: Tensor) -> Tensor:
        """M(tokens) as (batch, heads, tokens, tokens); a matrix for each channel is a head for each."""
        matrix = self.mix.matrix(tokens)
        if matrix.dim() == 4:
            return matrix
        return (matrix if matrix.dim() == 3 else matrix.unsqueeze(0)).expand(len(tokens), -1, -1, -1)

    def explicit(self, tokens: Tensor) -> Tensor:
        """The same by the matrix itself."""
        values = self.value(tokens)
        matrix = self.mix.matrix(tokens)
        return self.out(self.norm(multiply(matrix.to(torch.promote_types(matrix.dtype, values.dtype)), values)))


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

    def __init__(self, length: int) -> None:
        super().__init__()
        check_positive(length=length)
        self.weight = nn.Parameter(torch.randn(length, length) * length**-0.5)

    def matrix(self, tokens: Tensor) -> Tensor:
        return self.weight

    def forward(self, tokens: Tensor, values: Tensor) -> Tensor:
        if values.shape[1] != len(self.weight):
            raise UsageError(f"there are {values.shape[1]} tokens; the weights are for {len(self.weight)}.")
        return self.weight @ values


def fourier_matrix(length: int, like: Tensor) -> Tensor:
    """The discrete Fourier transform as a matrix: exp(-2 pi i t s / L), complex (length, length)."""
    eye = torch.eye(length, dtype=like.real.dtype, device=like.device)
    return torch.fft.fft(eye)


class FourierMix(Mix):
    """The Fourier transform along the tokens (FNet, arXiv:2105.03824): M = F_L, complex.

    With `FourierValue` and `norm=torch.real`, a `TokenMixer` is FNet's: Y = Re(F_L X F_D).
    """

    def matrix(self, tokens: Tensor) -> Tensor:
        return fourier_matrix(tokens.shape[1], tokens)

    def forward(self, tokens: Tensor, values: Tensor) -> Tensor:
        return torch.fft.fft(values, dim=1)


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

    def __init__(self, dim: int, size: int = 3, causal: bool = False) -> None:
        super().__init__()
        check_positive(dim=dim, size=size)
        self.first = 0 if causal else -(size // 2)
        self.weight = nn.Parameter(torch.randn(dim, size) * size**-0.5)

    def matrix(self, tokens: Tensor) -> Tensor:
        return _toeplitz(self.weight, tokens.shape[1], self.first)

    def forward(self, tokens: Tensor, values: Tensor) -> Tensor:
        dim, size = self.weight.shape
        padded = F.pad(values.transpose(1, 2), (size - 1 + self.first, -self.first))
        return F.conv1d(padded, self.weight.flip(1).unsqueeze(1), groups=dim).transpose(1, 2)


class FilterMix(Mix):
    """A filter of all frequencies for each channel (GFNet, arXiv:2107.00645): M_c = F^-1 diag(g_c) F, circulant.

    Args:
        dim: channels.
        length: number of tokens.
    """

    def __init__(self, dim: int, length: int) -> None:
        super().__init__()
        check_positive(dim=dim, length=length)
        self.length = length
        self.gains = nn.Parameter(torch.randn(dim, length // 2 + 1, 2))

    def matrix(self, tokens: Tensor) -> Tensor:
        kernel = torch.fft.irfft(torch.view_as_complex(self.gains), n=self.length)
        t = torch.arange(self.length, device=kernel.device)
        return kernel[:, (t.unsqueeze(1) - t) % self.length]

    def forward(self, tokens: Tensor, values: Tensor) -> Tensor:
        gains = torch.view_as_complex(self.gains).T
        return torch.fft.irfft(torch.fft.rfft(values, dim=1) * gains, n=self.length, dim=1)


class StateSpaceMix(Mix):
    """A diagonal state space for each channel (S4 family): M_c[t, s] = sum_n c_n a_n^(t - s) b_n for s <= t.

    h_t = a h_(t-1) + b x_t,   y_t = c . h_t

    Args:
        dim: channels.
        states: numbers of the state of a channel.
    """

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

    def forward(self, tokens: Tensor, values: Tensor) -> Tensor:
        state = values.new_zeros(len(values), *self.decay.shape)
        outputs = []
        for value in values.unbind(1):
            state = self.decay * state + self.read * value.unsqueeze(-1)
            outputs.append((self.write * state).sum(-1))
        return torch.stack(outputs, 1)


class PoolingMix(Mix):
    """The mean of the tokens around each (PoolFormer, arXiv:2111.11418): M is a band, rows sum to one.

    Args:
        size: tokens of the window, odd; 1 is the identity. At the ends it has the tokens that are there.
    """

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

    def forward(self, tokens: Tensor, values: Tensor) -> Tensor:
        moved = values.transpose(1, 2)
        return F.avg_pool1d(moved, self.size, 1, self.size // 2, count_include_pad=False).transpose(1, 2)


FEATURES = ("elu", "random")


class _Heads(Mix):
    """Queries and keys of heads."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.query, self.key = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)

    def split(self, x: Tensor) -> Tensor:
        """(batch, tokens, dim) -> (batch, heads, tokens, dim of a head)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def queries_keys(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return self.split(self.query(tokens)), self.split(self.key(tokens))


class SoftmaxMix(_Heads):
    """Attention: M = D^-1 exp(Q K^T / sqrt d), rows sum to one.

    Args:
        dim, num_heads: of the tokens.
        topology: who may attend to whom, such as `Causal()` or `Neighborhood(...)`; everybody by default.
    """

    def __init__(self, dim: int, num_heads: int = 1, topology: Topology | None = None) -> None:
        super().__init__(dim, num_heads)
        self.coupling = Coupling("senders", topology=topology)

    def matrix(self, tokens: Tensor) -> Tensor:
        q, k = self.queries_keys(tokens)
        return self.coupling(q @ k.transpose(-1, -2) * self.head_dim**-0.5)

    def forward(self, tokens: Tensor, values: Tensor) -> Tensor:
        q, k = self.queries_keys(tokens)
        return attend(q, k, self.split(values), self.coupling).transpose(1, 2).flatten(2)


class LowRankMix(_Heads):
    """Attention to a few mixtures of keys (Linformer, arXiv:2006.04768): M = softmax(Q (E K)^T / sqrt d) F.

    Args:
        dim, num_heads: of the tokens.
        length: number of tokens.
        rank: number of mixtures.
    """

    def __init__(self, dim: int, num_heads: int, length: int, rank: int) -> None:
        super().__init__(dim, num_heads)
        check_positive(length=length, rank=rank)
        self.keys = nn.Parameter(torch.randn(rank, length) * length**-0.5)
        self.values = nn.Parameter(torch.randn(rank, length) * length**-0.5)

    def _to_mixtures(self, tokens: Tensor) -> Tensor:
        q, k = self.queries_keys(tokens)
        return (q @ (self.keys @ k).transpose(-1, -2) * self.head_dim**-0.5).softmax(-1)

    def matrix(self, tokens: Tensor) -> Tensor:
        return self._to_mixtures(tokens) @ self.values

    def forward(self, tokens: Tensor, values: Tensor) -> Tensor:
        return (self._to_mixtures(tokens) @ (self.values @ self.split(values))).transpose(1, 2).flatten(2)


class KernelMix(_Heads):
    """Attention by features: M = D^-1 phi(Q) phi(K)^T, multiplied from right to left; rows sum to one.

    Args:
        dim, num_heads: of the tokens.
        features: "elu", 1 + elu(x) (arXiv:2006.16236), or "random", exp(w x - |x|^2 / 2) for random w
            (arXiv:2009.14794).
        causal: whether a token attends to none behind it.
        num_features: of "random", for each head.
    """

    def __init__(
        self, dim: int, num_heads: int = 1, features: str = "elu", causal: bool = False, num_features: int = 16
    ) -> None:
        super().__init__(dim, num_heads)
        check_choice("features", features, FEATURES)
        check_positive(num_features=num_features)
        self.features, self.causal = features, causal
        directions = torch.randn(num_features, self.head_dim) if features == "random" else torch.empty(0)
        self.register_buffer("directions", directions)
        self.directions: Tensor

    def phi(self, x: Tensor) -> Tensor:
        """Features of queries or keys, all positive."""
        if self.features == "elu":
            return F.elu(x) + 1
        x = x * self.head_dim**-0.25
        return (x @ self.directions.T - x.square().sum(-1, keepdim=True) / 2).exp() * len(self.directions) ** -0.5

    def matrix(self, tokens: Tensor) -> Tensor:
        q, k = (self.phi(x) for x in self.queries_keys(tokens))
        scores = q @ k.transpose(-1, -2)
        scores = scores.tril() if self.causal else scores
        return scores / scores.sum(-1, keepdim=True)

    def forward(self, tokens: Tensor, values: Tensor) -> Tensor:
        q, k = (self.phi(x) for x in self.queries_keys(tokens))
        v = self.split(values)
        if self.causal:
            slopes = q.new_zeros(self.num_heads)
            v = torch.cat((v, torch.ones_like(v[..., :1])), -1)
            out = linear_scan(Scan(q, k, v, slopes, None, 64))[0]
            out, total = out[..., :-1], out[..., -1:]
        else:
            out = q @ (k.transpose(-1, -2) @ v)
            total = q @ k.sum(2).unsqueeze(-1)
        return (out / total).transpose(1, 2).flatten(2)


class DecayMix(_Heads):
    """Linear attention with decay: M_ts = q_t . k_s lam^(t - s) for s <= t, no normaliser (arXiv:2405.17381).

    Args:
        dim, num_heads: of the tokens.
        decay: lam, above 0 and below 1.
    """

    def __init__(self, dim: int, num_heads: int = 1, decay: float = 0.9) -> None:
        super().__init__(dim, num_heads)
        check_positive(decay=decay)
        check_probability(decay=decay)
        self.slope = -math.log(decay)

    def matrix(self, tokens: Tensor) -> Tensor:
        q, k = self.queries_keys(tokens)
        t = torch.arange(tokens.shape[1], device=tokens.device)
        ages = (t.unsqueeze(1) - t).clamp(min=0).to(q.dtype)
        return (q @ k.transpose(-1, -2) * (-self.slope * ages).exp()).tril()

    def forward(self, tokens: Tensor, values: Tensor) -> Tensor:
        q, k = self.queries_keys(tokens)
        slopes = q.new_full((self.num_heads,), self.slope)
        return linear_scan(Scan(q, k, self.split(values), slopes, None, 64))[0].transpose(1, 2).flatten(2)


class Instance(NamedTuple):
    """One token mixer of the taxonomy.

    Attributes:
        matrix: what M is, as a formula.
        mix: (tokens, dim) -> M for that size.
        value: what V is, as a formula: a projection, the Fourier transform of the channels, or the tokens themselves.
    """

    matrix: str
    mix: Callable[[int, int], Mix]
    value: str = "X W"


def _window(length: int) -> Neighborhood:
    return Neighborhood((length,), min(5, length), 1, 1, False)


INSTANCES: dict[str, Instance] = {
    "attention": Instance("softmax(Q K^T / sqrt d)", lambda n, d: SoftmaxMix(d, 2)),
    "causal attention": Instance("softmax on s <= t", lambda n, d: SoftmaxMix(d, 2, Causal())),
    "local attention": Instance("softmax on a band", lambda n, d: SoftmaxMix(d, 2, _window(n))),
    "linear attention": Instance("D^-1 phi(Q) phi(K)^T", lambda n, d: KernelMix(d, 2)),
    "causal linear attention": Instance("D^-1 tril(phi(Q) phi(K)^T)", lambda n, d: KernelMix(d, 2, causal=True)),
    "random features": Instance("D^-1 phi(Q) phi(K)^T", lambda n, d: KernelMix(d, 2, "random", num_features=4)),
    "low rank": Instance("softmax(Q (E K)^T) F", lambda n, d: LowRankMix(d, 2, n, max(1, n // 4))),
    "decay": Instance("q_t . k_s lam^(t - s)", lambda n, d: DecayMix(d, 2)),
    "learned": Instance("W", lambda n, d: LearnedMix(n)),
    "fourier": Instance("F_L", lambda n, d: FourierMix(), "X F_D"),
    "convolution": Instance("Toeplitz(w_c)", lambda n, d: ConvolutionMix(d, 5), "X"),
    "global filter": Instance("F^-1 diag(g_c) F", lambda n, d: FilterMix(d, n), "X"),
    "state space": Instance("c a^(t - s) b", lambda n, d: StateSpaceMix(d, 2), "X"),
    "pooling": Instance("band / count", lambda n, d: PoolingMix(5), "X"),
    "identity": Instance("I", lambda n, d: PoolingMix(1), "X"),
}
"""The taxonomy of arXiv:2302.06218 and its neighbours."""


def make_mixer(name: str, length: int, dim: int) -> TokenMixer:
    """An instance by its name, given the number of tokens and their size."""
    if name not in INSTANCES:
        raise unknown("token mixer", name, INSTANCES)
    mix, value = INSTANCES[name].mix(length, dim), INSTANCES[name].value
    if value == "X F_D":
        return TokenMixer(mix, FourierValue(), torch.real)
    return TokenMixer(mix, nn.Linear(dim, dim, bias=False) if value == "X W" else None)
