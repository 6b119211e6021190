"""Tensor attention: every receiver attends to pairs of senders, so that one layer sees whether three tokens fit.

Source: arXiv:2310.04064.
Cost: n m1 m2 (d + dv) multiplications a head for n receivers and m1 m2 pairs, exact or streamed; the polynomial of
degree g takes (n + m1 + m2) C(d + g, g) (d + dv). Live at once, beyond the inputs: n m1 m2 scores exact, n (b m2 + dv)
streamed with blocks of b senders of the first set, (n + m1 + m2) C(d + g, g) for the polynomial.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Literal, overload

import torch
from torch import Tensor, nn

from mereo.core import Causal, Coupling, mechanism
from mereo.core.inputs import check_tensors
from mereo.core.kernels.tensor_attention import (
    LARGEST,
    METHODS,
    Triples,
    attend_tuples,
    channel_sizes,
    taylor_remainder,
)
from mereo.core.kernels.transforms import operations_are_watched, transformed
from mereo.core.squash import bounded
from mereo.errors import UsageError, check_choice, check_finite, check_heads, check_probability
from mereo.mechanisms.attention.dense.multi_head import four_axes


@overload
def tensor_attention(
    q: Tensor, k1: Tensor, v1: Tensor, k2: Tensor, v2: Tensor, scale: float | None = ..., method: str = ...,
    degree: int = ..., *, more: Sequence[Tensor] = ..., masks: Sequence[Tensor | None] = ...,
    coupling: Coupling | None = ..., return_bound: Literal[False] = ...,
) -> Tensor: ...  # fmt: skip
@overload
def tensor_attention(
    q: Tensor, k1: Tensor, v1: Tensor, k2: Tensor, v2: Tensor, scale: float | None = ..., method: str = ...,
    degree: int = ..., *, more: Sequence[Tensor] = ..., masks: Sequence[Tensor | None] = ...,
    coupling: Coupling | None = ..., return_bound: Literal[True],
) -> tuple[Tensor, float]: ...  # fmt: skip
def tensor_attention(
    q: Tensor,
    k1: Tensor,
    v1: Tensor,
    k2: Tensor,
    v2: Tensor,
    scale: float | None = None,
    method: str = "auto",
    degree: int = 4,
    *,
    more: Sequence[Tensor] = (),
    masks: Sequence[Tensor | None] = (),
    coupling: Coupling | None = None,
    return_bound: bool = False,
) -> Tensor | tuple[Tensor, float]:
    """Softmax attention of each query to all pairs of keys, or tuples if there are more sets of keys.

    S_i(jk) = scale sum_c q_ic k1_jc k2_kc,   out_ic = sum_jk softmax_jk(S_i) v1_jc v2_kc

    Args:
        scale: factor of the scores; 1 / dim by default, so that entries of size B give scores of size B^3.
        method: "auto", "streamed" (by blocks, never all scores at once), "exact", or "polynomial", an approximation in
            time linear in the number of tokens, see `polynomial_error`; it takes masks that are the same for all
            queries, and warns where its error has no bound.
        degree: of the polynomial, even: others are negative somewhere.
        more: keys and values of further sets, alternating.
        masks: bool, one for each set of keys, or None; a pair takes part if both of its senders do.
        coupling: makes the couplings, if they are to be recorded; pairs are senders, j m2 + k.
        return_bound: return (out, bound) with the largest possible error of an entry: `polynomial_error`, which may be
            infinite, or 0 for the other methods. There is no warning then.

    Shapes: q (batch, heads, tokens, dim), k1 (batch, heads, m1, dim), v1 (batch, heads, m1, pose), k2 and v2 with m2,
        masks broadcastable to (batch, heads, tokens, m1) and (batch, heads, tokens, m2)
        -> (batch, heads, tokens, pose). A query with every pair masked out, or without any pair, becomes 0.

    Raises:
        UsageError: for shapes that do not fit together, and odd degrees.

    Deviates: the abstract of the paper has no scale; the approximation there is by a polynomial of least degree, and
        by Taylor's here, which factors in the same way.

    Reference: arXiv:2310.04064, definitions 1.1 and 1.2.
    """
    if len(more) % 2:
        raise UsageError(f"more has {len(more)} tensors; give keys and values of each further set.")
    keys, values = (k1, k2, *more[::2]), (v1, v2, *more[1::2])
    _check(q, keys, values, masks, scale)
    if not isinstance(degree, int) or degree < 0 or degree % 2:
        raise UsageError(f"degree is {degree}; it must be even and at least 0.")
    scale = 1 / q.shape[-1] if scale is None else scale
    each = tuple(masks) or (None,) * len(keys)
    coupling = Coupling("senders") if coupling is None else coupling
    out = attend_tuples(Triples(q, keys, values, each, coupling, scale, degree), method)
    if return_bound:
        sets = [x for pair in zip(keys, values, strict=True) for x in pair]
        return out, polynomial_error(q, *sets, scale=scale, degree=degree) if method == "polynomial" else 0.0
    if method == "polynomial" and _can_be_read(q) and math.isinf(_remainder(q, keys, scale, degree)):
        warnings.warn(
            f"method is 'polynomial', whose error has no bound for scores as large as these with degree {degree}: the"
            " output may be far off; use smaller queries and keys, a smaller scale, or method='auto'.",
            UserWarning,
            stacklevel=2,
        )
    return out


def _can_be_read(x: Tensor) -> bool:
    """Whether the entries have values now, on which a warning may depend."""
    return not (torch.compiler.is_compiling() or transformed() or operations_are_watched() or x.is_meta)


def _remainder(q: Tensor, keys: Sequence[Tensor], scale: float | None, degree: int) -> float:
    """`taylor_remainder` for the largest score that entries of these sizes may have; 0 without any score."""
    if 0 in (q.numel(), *(key.numel() for key in keys)):
        return 0.0
    scores = channel_sizes(q, keys).double().prod(0).sum(-1)
    return taylor_remainder(abs(1 / q.shape[-1] if scale is None else scale) * scores.max().item(), degree)


def _check(
    q: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    masks: Sequence[Tensor | None],
    scale: float | None,
) -> None:
    if isinstance(scale, Tensor):
        raise UsageError("scale is a tensor; it must be a number: give further sets of keys as more=(k3, v3).")
    check_finite(scale=scale)
    numbered = {f"{name}{n}": x for name, xs in (("k", keys), ("v", values)) for n, x in enumerate(xs, start=1)}
    check_tensors(q=q, **numbered)
    pose = values[0].shape[-1:]
    for number, (key, value) in enumerate(zip(keys, values, strict=True), start=1):
        fits = key.dim() == q.dim() == 4 and key.shape[:2] == q.shape[:2] and key.shape[3] == q.shape[3]
        if not fits or value.shape[:-1] != key.shape[:-1] or value.shape[-1:] != pose:
            raise UsageError(
                f"q is {tuple(q.shape)}, k{number} {tuple(key.shape)} and v{number} {tuple(value.shape)}; they must be"
                " (batch, heads, tokens, dim), and (batch, heads, senders, dim) and (batch, heads, senders, pose)."
            )
    if q.shape[-1] == 0:
        raise UsageError(f"q is {tuple(q.shape)}, with a dim of 0; it must be at least 1.")
    if masks and len(masks) != len(keys):
        raise UsageError(f"masks are {len(masks)} for {len(keys)} sets of keys; give one for each, or None.")
    for mask in masks:
        if mask is not None and mask.dtype != torch.bool:
            raise UsageError(f"a mask is {mask.dtype}; it must be bool, True = takes part.")


def polynomial_error(q: Tensor, *sets: Tensor, scale: float | None = None, degree: int = 4) -> float:
    """The largest possible error of an entry of `tensor_attention` by a polynomial; infinite where no bound holds.

    2 e / (1 - e) max|v1| max|v2|,   e = exp(2 R) R^(g + 1) / (g + 1)!,   |S| <= R

    R is estimated from above by scale sum_c max_i|q_ic| max_j|k1_jc| max_k|k2_kc|, the largest of all heads. Rounding
    is not counted.

    Args:
        q, sets: the queries; then keys and values of each set, as for `tensor_attention`.
        scale, degree: as there.

    Reference: ours, from the remainder of Taylor's series.
    """
    keys, values = sets[::2], sets[1::2]
    if any(value.numel() == 0 for value in values):
        return 0.0
    error = _remainder(q, keys, scale, degree)
    return 2 * error / (1 - error) * math.prod(v.abs().max().item() for v in values) if error < 1 else math.inf


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return TensorAttention(12, 3), (torch.randn(2, 5, 12),)


@mechanism(
    "tensor_attention",
    family="higher-order attention",
    source="arXiv:2310.04064",
    over="senders",
    values="shared",
    promises=("normalised", "masks", "any sender order", "any receiver order", "any length"),
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    tuple_size=2,
    largest_input=1e10,  # see LARGEST
    interface="tokens",
    example=_example,
)
class TensorAttention(nn.Module):
    """Replace each token by a mean of products of the values of two tokens, over all pairs.

    q = W_q x,  k1 = W_k1 x,  k2 = W_k2 x,  v1 = W_v1 x,  v2 = W_v2 x  for each head;
    out = W_o [sum_jk softmax_jk(scale sum_c q_ic k1_jc k2_kc) v1_j v2_k, ...]

    Args:
        dim: size of the tokens.
        num_heads: divides `dim`.
        scale: factor of the scores; heads / dim by default.
        bias: whether the projections have biases.
        causal: each token attends to pairs of itself and tokens before it.
        method: "auto", "streamed", "exact" or "polynomial", see `tensor_attention`.
        degree: of the polynomial, even.
        attn_drop: dropout of the couplings.

    Shapes: tokens (batch, tokens, dim), mask bool (batch, tokens) or (batch, tokens, tokens), True = takes part
        -> (batch, tokens, dim).

    Reads as: couplings[b, h, r, j m + k] is the share of the pair (j, k) of m tokens in what head h gives
    for token r.

    Deviates: the paper has no layer; the projections follow Sanford, Hsu and Telgarsky. Xavier uniform weights.

    Reference: arXiv:2310.04064; arXiv:2306.02896 for the layer.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        scale: float | None = None,
        bias: bool = False,
        causal: bool = False,
        method: str = "auto",
        degree: int = 4,
        attn_drop: float = 0.0,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_probability(attn_drop=attn_drop)
        check_choice("method", method, ["auto", *METHODS])
        if not isinstance(degree, int) or degree < 0 or degree % 2:
            raise UsageError(f"degree is {degree}; it must be even and at least 0.")
        self.num_heads, self.scale, self.causal, self.method, self.degree = num_heads, scale, causal, method, degree
        self.query, self.key1, self.key2, self.value1, self.value2, self.proj = (
            nn.Linear(dim, dim, bias=bias) for _ in range(6)
        )
        self.coupling = Coupling("senders", dropout=attn_drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: Xavier uniform weights, biases of zero."""
        for layer in (self.query, self.key1, self.key2, self.value1, self.value2, self.proj):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        def heads(layer: nn.Module, largest: float = LARGEST) -> Tensor:
            return bounded(layer(tokens), largest).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

        senders = four_axes(mask)
        if self.causal:
            count = tokens.shape[1]
            senders = Causal().restrict(senders, count, count, tokens.device)
        out = tensor_attention(
            heads(self.query), heads(self.key1), heads(self.value1), heads(self.key2), heads(self.value2),
            masks=(senders, senders), scale=self.scale, method=self.method, degree=self.degree, coupling=self.coupling,
        )  # fmt: skip
        merged: Tensor = self.proj(out.transpose(1, 2).flatten(2))
        return merged
