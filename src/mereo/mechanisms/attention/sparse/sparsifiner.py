"""Sparsifiner: a cheap predictor of low rank decides, image by image, which keys each query attends to.

Source: Wei, Duke, Jiang, Aarabi, Taylor, Shkurti 2023, arXiv:2303.13755.
Cost: dense attention and the predictor, because the kept pairs are a mask here: on CPUs, passes over the kept pairs
    alone were slower. `attention_cost` counts the multiply-adds of an implementation that computes kept pairs only: for
    DeiT-S, 52 % of dense attention's with a quarter of the keys, and 117 % with nine tenths.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.core.initialise import start_linears
from mereo.core.kernels.attention import attend
from mereo.errors import (
    UsageError,
    check_choice,
    check_finite,
    check_fraction,
    check_heads,
    check_positive,
    check_probability,
)
from mereo.mechanisms.attention.dense import MultiHeadAttention
from mereo.mechanisms.attention.hosted import HostedAttention, attention_drop, split_heads


class SparsifinerMaps(NamedTuple):
    """Intermediate results of Sparsifiner.

    Shapes: approx (batch, heads, queries, tokens), its estimate of the attention of all queries but the class token's;
        coefficients (batch, heads, queries, rank); mask bool (batch, heads, tokens, tokens).
    """

    approx: Tensor
    coefficients: Tensor
    mask: Tensor


def attention_cost(
    tokens: int,
    head_dim: int,
    keep: float,
    *,
    rank: int | None = None,
    low_dim: int | None = None,
    top_basis: int = 8,
    density: float = 0.3125,
) -> float:
    """Multiply-adds of one head of one layer, where only the kept pairs are computed; dense attention takes 2 n^2 d.

    2 n d c + 2 n c r + (n - 1) t n p + 2 (n - 1) b d + 2 n d,   b = ceil(keep n)

    Args:
        tokens, head_dim: n with the class token, and d.
        keep: share of the keys that a query keeps.
        rank, low_dim, top_basis: r, c and t; see `SparsifinerAttention`.
        density: share of the entries of the basis that are not 0, p; 0.3125 of a fresh one exceed its threshold.
    """
    rank, low_dim = tokens // 6 if rank is None else rank, head_dim // 2 if low_dim is None else low_dim
    predictor = 2 * tokens * low_dim * (head_dim + rank) + (tokens - 1) * top_basis * tokens * density
    return predictor + 2 * (tokens - 1) * kept_keys(tokens, keep) * head_dim + 2 * tokens * head_dim


def kept_keys(tokens: int, keep: float) -> int:
    """ceil(keep * tokens)."""
    return math.ceil(round(keep * tokens, 6))


class ConnectivityPredictor(nn.Module):
    """An estimate of attention from few channels, few keys and a basis of connections.

    A = top_t(softmax((W_q q + b) (P_down^T (W_k k + b))^T / sqrt(c))) P_up

    Args:
        tokens: n; positions have parameters of their own.
        head_dim: size of queries and keys.
        rank: rows of the basis.
        low_dim: channels c.
        top_basis: largest coefficients that are kept, t; None keeps all.
        basis_threshold: entries of the basis of at most this size are left out.
        absolute_basis: use the sizes of the entries without their signs, as the authors' code does in evaluation.
        scale: of the scores; c^-1/2 by default. The authors' code has heads^-1/2.
        prefix: number of tokens before the patches, which are not queries here.

    Nothing is left out while the predictor learns (`reduced` is False).

    Shapes: q, k (batch, heads, tokens, head_dim) -> (batch, heads, tokens - prefix, tokens).
    """

    def __init__(
        self,
        tokens: int,
        head_dim: int,
        rank: int,
        low_dim: int,
        *,
        top_basis: int | None = 8,
        basis_threshold: float = 0.02,
        absolute_basis: bool = False,
        scale: float | None = None,
        prefix: int = 1,
    ) -> None:
        super().__init__()
        self.prefix, self.top_basis, self.basis_threshold = prefix, top_basis, basis_threshold
        check_finite(scale=scale)
        self.absolute_basis, self.scale = absolute_basis, low_dim**-0.5 if scale is None else scale
        self.query, self.key = nn.Linear(head_dim, low_dim), nn.Linear(head_dim, low_dim)
        self.down, self.up = nn.Parameter(torch.empty(tokens, rank)), nn.Parameter(torch.empty(rank, tokens))
        self.reduced = True
        for weight in (self.down, self.up):
            nn.init.trunc_normal_(weight, std=0.02)
        start_linears(self)

    def coefficients(self, q: Tensor, k: Tensor) -> Tensor:
        """Shares of the rows of the basis: (batch, heads, tokens - prefix, rank)."""
        keys = self.down.T @ self.key(k)
        shares = ((self.query(q[:, :, self.prefix :]) @ keys.mT) * self.scale).softmax(-1)
        if not self.reduced or self.top_basis is None or self.top_basis >= shares.shape[-1]:
            return shares
        best = shares.topk(self.top_basis, -1)
        return torch.zeros_like(shares).scatter(-1, best.indices, best.values)

    def basis(self) -> Tensor:
        """The rows that are combined: (rank, tokens)."""
        if not self.reduced:
            return self.up
        kept = torch.where(self.up.abs() > self.basis_threshold, self.up, torch.zeros_like(self.up))
        return kept.abs() if self.absolute_basis else kept

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return self.coefficients(q, k) @ self.basis()


class _Projections(nn.Module):
    """Queries, keys and values of self-attention, and its output."""

    def __init__(self, dim: int, num_heads: int, qkv_bias: bool) -> None:
        super().__init__()
        self.num_heads, self.qkv, self.proj = num_heads, nn.Linear(dim, 3 * dim, bias=qkv_bias), nn.Linear(dim, dim)
        start_linears(self)


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return SparsifinerAttention(12, 3, tokens=9, keep=0.5, rank=4, top_basis=2), (torch.randn(2, 9, 12),)


@mechanism(
    "sparsifiner",
    family="sparse attention",
    over="senders",
    values="shared",
    update="linear",
    source="arXiv:2303.13755",
    promises=("normalised",),
    lacks={"half precision": "rounding can change which keys are kept, and with them the output"},
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    largest_input=1e15,  # queries times keys must fit float32
    interface="tokens",
    example=_example,
)
class SparsifinerAttention(HostedAttention):
    """Attend to the keys that a predictor of low rank ranks highest, image by image.

    A = top_t(softmax(W_q q (P_down^T W_k k)^T / sqrt(c))) P_up

    keep the b = ceil(keep n) largest entries of each row of A, and all keys for the class token;
    out = W_o [softmax over the kept keys(q k^T / sqrt(d)) v, ...] + b_o

    The choice of keys has no gradient: the predictor learns from a teacher, in the phase "reconstruction", in
    which attention is dense. In the phase "sparse" its parameters are frozen.

    Args:
        dim: size of the tokens.
        num_heads: independent sets of couplings; divides `dim`.
        tokens: number of tokens, n, the class token among them; it is fixed.
        keep: share of the keys that a query keeps; from above 0 to 1.
        rank: rows of the basis; by default, and for 0, tokens // 6, at least 1.
        low_dim: channels of the predictor; by default half the channels of a head.
        top_basis, basis_threshold, absolute_basis: see `ConnectivityPredictor`.
        predictor_scale: of its scores.
        mask_threshold: keep the entries of A above this, instead of the b largest.
        prefix: number of tokens before the patches, which attend to all keys.
        qkv_bias: biases of the projection to queries, keys and values.
        host: an attention layer whose projections are used, of `dim` and `num_heads`; new ones by default.

    Shapes: tokens (batch, tokens, dim), token_mask bool (batch, tokens - prefix), False for patches that no query may
        keep -> (batch, tokens, dim).

    Reads as: couplings[b, h, r, s] is the share of token s in the output of head h for token r; 0 for keys that it does
        not keep.

    Deviates: the scale of the predictor is c^-1/2, where the authors' code has heads^-1/2, and signs of the basis are
        kept in evaluation, where it drops them.

    Reference: arXiv:2303.13755, section 3.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        tokens: int,
        *,
        keep: float = 0.25,
        rank: int | None = None,
        low_dim: int | None = None,
        top_basis: int | None = 8,
        basis_threshold: float = 0.02,
        absolute_basis: bool = False,
        predictor_scale: float | None = None,
        mask_threshold: float | None = None,
        prefix: int = 1,
        qkv_bias: bool = True,
        host: nn.Module | None = None,
    ) -> None:
        check_heads(dim, num_heads)
        check_positive(tokens=tokens)
        check_fraction(keep=keep)
        if not 0 <= prefix < tokens:
            raise UsageError(f"prefix is {prefix} with {tokens} tokens; at least one token must be a patch.")
        check_probability(basis_threshold=basis_threshold)
        rank = rank or max(tokens // 6, 1)
        low_dim = max(dim // num_heads // 2, 1) if low_dim is None else low_dim
        check_positive(rank=rank, low_dim=low_dim)
        if top_basis is not None:
            check_positive(top_basis=top_basis)
        if isinstance(host, MultiHeadAttention) and host.coupling.topology is not None:
            raise UsageError(
                f"host has the topology {host.coupling.topology}; Sparsifiner needs one that sees all tokens."
            )
        super().__init__(_Projections(dim, num_heads, qkv_bias) if host is None else host)
        self.tokens, self.keep, self.prefix, self.mask_threshold = tokens, keep, prefix, mask_threshold
        self.coupling = Coupling("senders", dropout=0.0 if host is None else attention_drop(host))
        self.predictor = ConnectivityPredictor(
            tokens, self.head_dim, rank, low_dim, top_basis=top_basis, basis_threshold=basis_threshold,
            absolute_basis=absolute_basis, scale=predictor_scale, prefix=prefix,
        )  # fmt: skip
        self.set_phase("sparse")

    def set_phase(self, phase: str) -> None:
        """Let the predictor learn while attention is dense, or keep what it predicts, with the predictor frozen.

        Args:
            phase: "reconstruction" or "sparse".
        """
        check_choice("phase", phase, ("reconstruction", "sparse"))
        self.phase, self.predictor.reduced = phase, phase == "sparse"
        self.predictor.requires_grad_(phase == "reconstruction")

    def _seen(self, token_mask: Tensor) -> Tensor:
        """Keys that may be kept: bool (batch, 1, 1, tokens)."""
        return F.pad(token_mask, (self.prefix, 0), value=True)[:, None, None, :]

    def _kept(self, approx: Tensor, token_mask: Tensor | None) -> Tensor:
        """The b keys of each query with the largest estimates; all keys in the rows of the prefix.

        Shapes: approx (batch, heads, tokens - prefix, tokens) -> bool (batch, heads, tokens, tokens).
        """
        approx, seen = approx.detach(), None if token_mask is None else self._seen(token_mask)
        if seen is not None:
            approx = approx.masked_fill(~seen, -torch.inf)
        if self.mask_threshold is None:
            best = approx.topk(kept_keys(self.tokens, self.keep), -1).indices
            mask = torch.zeros_like(approx, dtype=torch.bool).scatter(-1, best, True)
        else:
            mask = approx > self.mask_threshold
        mask = F.pad(mask, (0, 0, self.prefix, 0), value=True)
        return mask if seen is None else mask & seen

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, token_mask: Tensor | None = None) -> Tensor:
        if q.shape[2] != self.tokens:
            raise UsageError(
                f"there are {q.shape[2]} tokens (batch, tokens, dim); this layer was built for {self.tokens}."
            )
        if token_mask is not None and token_mask.shape != (q.shape[0], self.tokens - self.prefix):
            wanted = (q.shape[0], self.tokens - self.prefix)
            raise UsageError(f"token_mask is {tuple(token_mask.shape)}; it must be {wanted}.")
        if self.phase == "reconstruction":
            if self.training:
                self.predictor(q, k)  # for a loss on its output
            mask = None if token_mask is None else self._seen(token_mask)
            return attend(q, k, v, self.coupling, mask=mask).transpose(1, 2).flatten(2)
        mask = self._kept(self.predictor(q, k), token_mask)
        return attend(q, k, v, self.coupling, mask=mask).transpose(1, 2).flatten(2)

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, token_mask: Tensor | None = None
    ) -> Tensor:
        return self.attended(x, attn_mask, is_causal, token_mask)

    def maps(self, x: Tensor, token_mask: Tensor | None = None) -> SparsifinerMaps:
        """The estimate, its coefficients and the kept pairs: (batch, tokens, dim) -> `SparsifinerMaps`."""
        q, k, _ = split_heads(self, x)
        approx = self.predictor(q, k)
        return SparsifinerMaps(approx, self.predictor.coefficients(q, k), self._kept(approx, token_mask))

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, tokens={self.tokens}, keep={self.keep}, phase={self.phase!r}"


def set_phase(model: nn.Module, phase: str) -> None:
    """Put all Sparsifiner of a model in the phase "reconstruction" or "sparse": see `SparsifinerAttention`."""
    layers = [module for module in model.modules() if isinstance(module, SparsifinerAttention)]
    if not layers:
        raise UsageError(f"model is a {type(model).__name__} without SparsifinerAttention; nothing has a phase.")
    for layer in layers:
        layer.set_phase(phase)


def keep_tokens(couplings: Tensor, keep: float, token_mask: Tensor | None = None, prefix: int = 1) -> Tensor:
    """Which patches later layers may keep: those that the class token attends to most, in the mean over heads.

    Args:
        keep: share of the patches that stay.
        token_mask: of an earlier layer; only patches with True in it can stay.

    Shapes: couplings (batch, heads, tokens, tokens), token_mask bool (batch, patches) -> bool (batch, patches).
    """
    scores = couplings[:, :, 0, prefix:].mean(1)
    if token_mask is not None:
        scores = scores.masked_fill(~token_mask, -1.0)
    best = scores.topk(kept_keys(scores.shape[1], keep), -1).indices
    kept = torch.zeros_like(scores, dtype=torch.bool).scatter(1, best, True)
    return kept if token_mask is None else kept & token_mask
