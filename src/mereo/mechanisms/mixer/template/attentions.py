"""Mixing matrices that depend on the tokens: attention, its kernel and low-rank forms, linear attention with decay."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Coupling, Topology
from mereo.core.kernels.attention import attend
from mereo.core.kernels.linear_scan import Scan, linear_scan
from mereo.errors import check_choice, check_heads, check_positive, check_probability
from mereo.mechanisms.mixer.template.base import Mix

FEATURES = ("elu", "random")


class _Heads(Mix):
    """Queries and keys of heads."""

    depends_on_input = True

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

    def product(self, tokens: Tensor, values: Tensor) -> Tensor:
        q, k = self.queries_keys(tokens)
        return attend(q, k, self.split(values), self.coupling).transpose(1, 2).flatten(2)

    def complexity(self, length: int, dim: int) -> int:
        return 2 * length**2 * dim


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

    def product(self, tokens: Tensor, values: Tensor) -> Tensor:
        return (self._to_mixtures(tokens) @ (self.values @ self.split(values))).transpose(1, 2).flatten(2)

    def rank_bound(self, length: int) -> int:
        return min(length, self.values.shape[0])

    def complexity(self, length: int, dim: int) -> int:
        return 4 * length * self.values.shape[0] * dim


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

    def product(self, tokens: Tensor, values: Tensor) -> Tensor:
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

    def rank_bound(self, length: int) -> int:
        width = len(self.directions) or self.head_dim
        return length if self.causal else min(length, width)

    def complexity(self, length: int, dim: int) -> int:
        return 2 * length * dim * (len(self.directions) or self.head_dim)


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

    def product(self, tokens: Tensor, values: Tensor) -> Tensor:
        q, k = self.queries_keys(tokens)
        slopes = q.new_full((self.num_heads,), self.slope)
        return linear_scan(Scan(q, k, self.split(values), slopes, None, 64))[0].transpose(1, 2).flatten(2)

    def complexity(self, length: int, dim: int) -> int:
        return 2 * length * dim * self.head_dim
