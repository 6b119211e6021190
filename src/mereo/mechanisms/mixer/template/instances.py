"""The instances of the template by name: what M and V are, and an example of each."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from mereo.core import Causal, Neighborhood
from mereo.errors import unknown
from mereo.mechanisms.mixer.template.attentions import DecayMix, KernelMix, LowRankMix, SoftmaxMix
from mereo.mechanisms.mixer.template.base import TokenMixer
from mereo.mechanisms.mixer.template.fixed import (
    ConvolutionMix,
    FilterMix,
    FourierMix,
    FourierValue,
    LearnedMix,
    PoolingMix,
    StateSpaceMix,
)


@dataclass(frozen=True)
class Instance:
    """One token mixer of the taxonomy.

    Attributes:
        matrix, value: what M and V are, as formulas.
        make: (tokens, dim) -> a mixer for that size.
    """

    matrix: str
    value: str
    make: Callable[[int, int], TokenMixer]


def _linear(dim: int) -> nn.Module:
    return nn.Linear(dim, dim, bias=False)


def _window(length: int) -> Neighborhood:
    return Neighborhood((length,), min(5, length), 1, 1, False)


INSTANCES: dict[str, Instance] = {
    "attention": Instance("softmax(Q K^T / sqrt d)", "X W", lambda n, d: TokenMixer(SoftmaxMix(d, 2), _linear(d))),
    "causal attention": Instance(
        "softmax on s <= t", "X W", lambda n, d: TokenMixer(SoftmaxMix(d, 2, Causal()), _linear(d))
    ),
    "local attention": Instance(
        "softmax on a band", "X W", lambda n, d: TokenMixer(SoftmaxMix(d, 2, _window(n)), _linear(d))
    ),
    "linear attention": Instance("D^-1 phi(Q) phi(K)^T", "X W", lambda n, d: TokenMixer(KernelMix(d, 2), _linear(d))),
    "causal linear attention": Instance(
        "D^-1 tril(phi(Q) phi(K)^T)", "X W", lambda n, d: TokenMixer(KernelMix(d, 2, causal=True), _linear(d))
    ),
    "random features": Instance(
        "D^-1 phi(Q) phi(K)^T", "X W", lambda n, d: TokenMixer(KernelMix(d, 2, "random", num_features=4), _linear(d))
    ),
    "low rank": Instance(
        "softmax(Q (E K)^T) F", "X W", lambda n, d: TokenMixer(LowRankMix(d, 2, n, max(1, n // 4)), _linear(d))
    ),
    "decay": Instance("q_t . k_s lam^(t - s)", "X W", lambda n, d: TokenMixer(DecayMix(d, 2), _linear(d))),
    "learned": Instance("W", "X W", lambda n, d: TokenMixer(LearnedMix(n), _linear(d))),
    "fourier": Instance("F_L", "X F_D", lambda n, d: TokenMixer(FourierMix(), FourierValue(), torch.real)),
    "convolution": Instance("Toeplitz(w_c)", "X", lambda n, d: TokenMixer(ConvolutionMix(d, 5))),
    "global filter": Instance("F^-1 diag(g_c) F", "X", lambda n, d: TokenMixer(FilterMix(d, n))),
    "state space": Instance("c a^(t - s) b", "X", lambda n, d: TokenMixer(StateSpaceMix(d, 2))),
    "pooling": Instance("band / count", "X", lambda n, d: TokenMixer(PoolingMix(5))),
    "identity": Instance("I", "X", lambda n, d: TokenMixer(PoolingMix(1))),
}
"""The taxonomy of arXiv:2302.06218 and its neighbours."""


def make_mixer(name: str, length: int, dim: int) -> TokenMixer:
    """An instance by its name, given the number of tokens and their size."""
    if name not in INSTANCES:
        raise unknown("token mixer", name, INSTANCES)
    return INSTANCES[name].make(length, dim)
