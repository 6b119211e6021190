"""Attention whose senders are pairs, or tuples, of tokens: three ways to compute it.

    S_i(jk) = scale sum_c q_ic k1_jc k2_kc,   out_ic = sum_jk softmax_jk(S_i) v1_jc v2_kc              arXiv:2310.04064

Keys of several sets are one set of products (Khatri-Rao), row j m2 + k for the pair (j, k), and values alike.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mereo.core.coupling import Coupling
from mereo.core.kernels.again import gradients_again
from mereo.core.kernels.methods import execute
from mereo.core.kernels.transforms import fallback_reason
from mereo.core.squash import accumulation_type, bounded
from mereo.errors import check_choice

TOGETHER = 2**18
"""Scores that are computed together, which should stay in the cache."""
LARGEST = 1e10
"""Queries and keys are clamped to this size: products of three must fit float32."""
MOST = 1e12
"""Largest power of a score, by its factorial, whose sums with values of `LARGEST` fit float32."""


def products(sets: Sequence[Tensor]) -> Tensor:
    """All products of one row of each set, column by column, the last set the fastest.

    Shapes: (..., m1, d), (..., m2, d), ... -> (..., m1 m2 ..., d).
    """
    whole = sets[0]
    for each in sets[1:]:
        whole = (whole.unsqueeze(-2) * each.unsqueeze(-3)).flatten(-3, -2)
    return whole


@dataclass(frozen=True)
class Triples:
    """One call.

    Attributes:
        q: (batch, heads, receivers, dim).
        keys, values: of two sets or more: (batch, heads, senders, dim) and (batch, heads, senders, pose) each.
        masks: bool, broadcastable to (batch, heads, receivers, senders), one a set or None: a tuple takes part where
            each of its senders does.
        coupling: makes the couplings.
        scale: factor of the scores.
        degree: of the polynomial.
    """

    q: Tensor
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    masks: tuple[Tensor | None, ...]
    coupling: Coupling
    scale: float
    degree: int

    @property
    def together(self) -> Tensor | None:
        """The mask of tuples, broadcastable to (batch, heads, receivers, tuples), or None."""
        whole: Tensor | None = None
        for mask, keys in zip(self.masks, self.keys, strict=True):
            each = torch.ones(1, dtype=torch.bool, device=keys.device) if mask is None else mask
            each = each.expand(*each.shape[:-1], keys.shape[-2])
            whole = each if whole is None else (whole.unsqueeze(-1) & each.unsqueeze(-2)).flatten(-2)
        return None if all(mask is None for mask in self.masks) else whole

    @property
    def as_pairs(self) -> "Triples":
        """The same with all sets but the first as one."""
        rest = replace(self, keys=self.keys[1:], values=self.values[1:], masks=self.masks[1:])
        keys, values = (self.keys[0], products(rest.keys)), (self.values[0], products(rest.values))
        return replace(self, keys=keys, values=values, masks=(self.masks[0], rest.together))


def exact(given: Triples) -> Tensor:
    """All scores: the definition, and the way that makes couplings."""
    keys, values = products(given.keys), products(given.values)
    scores = (given.q * given.scale) @ keys.transpose(-1, -2)
    return given.coupling(scores, given.together) @ values


def _block(q: Tensor, k1: Tensor, k2: Tensor, mask1: Tensor | None, mask2: Tensor | None) -> Tensor:
    """Scores of a block of the first set: (..., receivers, block, m2), -inf for a pair that takes no part."""
    scores = _rows(_pairs(q, k1) @ k2.transpose(-1, -2), q)
    for mask, axis in ((mask1, -1), (mask2, -2)):
        if mask is not None:
            scores.masked_fill_(~mask.unsqueeze(axis), -torch.inf)
    return scores


def _blocks(q: Tensor, k1: Tensor, k2: Tensor) -> Iterator[slice]:
    """The first set in blocks of TOGETHER scores, or of one sender."""
    count, size = k1.shape[-2], max(TOGETHER // max(q.shape[:-1].numel() * k2.shape[-2], 1), 1)
    return (slice(first, first + size) for first in range(0, count, size))


def _pairs(x: Tensor, block: Tensor) -> Tensor:
    """Products of each row with each of a block: (..., n, d), (..., b, d) -> (..., n b, d)."""
    return (x.unsqueeze(-2) * block.unsqueeze(-3)).flatten(-3, -2)


def _rows(pairs: Tensor, x: Tensor) -> Tensor:
    """(..., n b, d) -> (..., n, b, d) for x of n rows."""
    return pairs.unflatten(-2, (x.shape[-2], -1))


class _Streamed(torch.autograd.Function):
    """Softmax over pairs by blocks of the first set; the backward pass computes the blocks again."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k1: Tensor, k2: Tensor, v1: Tensor, v2: Tensor, mask1: Tensor | None,
        mask2: Tensor | None, scale: float,
    ) -> Tensor:  # fmt: skip
        wide = accumulation_type(q)
        Q, K1, K2, V1, V2 = (x.to(wide) for x in (q * scale, k1, k2, v1, v2))
        least = torch.finfo(wide).min
        top = Q.new_full(Q.shape[:-1], least)
        total, out = torch.zeros_like(top), Q.new_zeros(*Q.shape[:-1], V1.shape[-1])
        for some in _blocks(Q, K1, K2):
            m1 = None if mask1 is None else mask1.expand(*mask1.shape[:-1], K1.shape[-2])[..., some]
            scores = _block(Q, K1[..., some, :], K2, m1, mask2)
            higher = torch.maximum(top, scores.amax((-1, -2)))
            weights, kept = scores.sub_(higher[..., None, None]).exp_(), (top - higher).exp()
            total = total * kept + weights.sum((-1, -2))
            mixed = _rows(weights.flatten(-3, -2) @ V2, Q)
            out, top = out * kept.unsqueeze(-1) + (mixed * V1[..., some, :].unsqueeze(-3)).sum(-2), higher
        out = out / total.clamp(min=torch.finfo(wide).tiny).unsqueeze(-1)
        ctx.save_for_backward(q, k1, k2, v1, v2, mask1, mask2, out, top + total.clamp(min=1e-30).log())
        ctx.scale = scale
        return out.to(v1.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k1, k2, v1, v2, mask1, mask2, out, lse = ctx.saved_tensors
        if torch.is_grad_enabled():

            def plain(*tensors: Tensor) -> Tensor:
                Q, K1, K2, V1, V2 = tensors
                call = Triples(Q, (K1, K2), (V1, V2), (mask1, mask2), Coupling("senders"), ctx.scale, 0)
                return exact(call)

            return *gradients_again(plain, (q, k1, k2, v1, v2), grads), None, None, None
        wide = out.dtype
        Q, K1, K2, V1, V2, G = (x.to(wide) for x in (q * ctx.scale, k1, k2, v1, v2, grads[0]))
        dq, dk1, dk2, dv1, dv2 = (torch.zeros_like(x) for x in (Q, K1, K2, V1, V2))
        delta = (G * out).sum(-1)
        for some in _blocks(Q, K1, K2):
            k, v = K1[..., some, :], V1[..., some, :]
            m1 = None if mask1 is None else mask1.expand(*mask1.shape[:-1], K1.shape[-2])[..., some]
            weights = _block(Q, k, K2, m1, mask2).sub_(lse[..., None, None]).exp_()
            gv = _pairs(G, v)  # (..., receivers block, pose)
            ds = _rows(gv @ V2.transpose(-1, -2), Q).sub_(delta[..., None, None]).mul_(weights).flatten(-3, -2)
            weights = weights.flatten(-3, -2)
            read, mixed = _rows(ds @ K2, Q), _rows(weights @ V2, Q)
            dq += (read * k.unsqueeze(-3)).sum(-2)
            dk1[..., some, :] = (read * Q.unsqueeze(-2)).sum(-3)
            dv1[..., some, :] = (mixed * G.unsqueeze(-2)).sum(-3)
            dk2 += ds.transpose(-1, -2) @ _pairs(Q, k)
            dv2 += weights.transpose(-1, -2) @ gv
        found = (dq * ctx.scale, dk1, dk2, dv1, dv2)
        return *(g.to(x.dtype) for g, x in zip(found, (q, k1, k2, v1, v2), strict=True)), None, None, None


def streamed(given: Triples) -> Tensor:
    """By blocks of the first set: never all scores at once, in neither pass."""
    pairs = given.as_pairs
    out: Tensor = _Streamed.apply(pairs.q, *pairs.keys, *pairs.values, *pairs.masks, pairs.scale)
    return out


def _behind(dim: int, degree: int) -> list[int]:
    """How many monomials of a degree have only channels from c on, for each c: they are the last ones."""
    return [math.comb(dim - c + degree - 1, degree) for c in range(dim)]


def monomials(x: Tensor, degree: int) -> Tensor:
    """prod_c x_c^alpha_c for every alpha of at most that degree, in order of their degrees; 1 for alpha = 0.

    Those of one degree are in the order of their channels: 0 0, 0 1, ..., 1 1, 1 2, ...

    Shapes: (..., dim) -> (..., C(dim + degree, degree)).
    """
    levels, channels = [torch.ones_like(x[..., :1])], x.split(1, -1)
    for level in range(degree):
        last = levels[-1]
        counts = _behind(x.shape[-1], level)
        levels.append(
            torch.cat([x_c * last[..., last.shape[-1] - n :] for x_c, n in zip(channels, counts, strict=True)], -1)
        )
    return torch.cat(levels, -1)


def _coefficients(dim: int, degree: int) -> list[float]:
    """1 / prod_c alpha_c!, in the order of `monomials`."""
    found, last = [1.0], [(1.0, 0, 0)]  # with the first channel, and how often it stands there
    for level in range(degree):
        behind = [(c, each) for c, n in enumerate(_behind(dim, level)) for each in last[len(last) - n :]]
        powers = [(each, c, 1 + times * (first == c)) for c, (each, first, times) in behind]
        last = [(each / power, c, power) for each, c, power in powers]
        found += [each for each, _, _ in last]
    return found


def channel_sizes(q: Tensor, keys: Sequence[Tensor]) -> Tensor:
    """The largest entries of each channel of queries, and of keys of each set: (1 + sets, batch, heads, 1, dim)."""
    return torch.stack([x.detach().abs().amax(-2, keepdim=True) for x in (q, *keys)])


def taylor_remainder(size: float, degree: int) -> float:
    """e = exp(2 R) R^(g + 1) / (g + 1)! for scores up to R; infinite from 1 on, where no bound follows from it."""
    if not 0 < size < math.inf:
        return 0.0 if size == 0 else math.inf  # also where it is NaN
    logarithm = 2 * size + (degree + 1) * math.log(size) - math.lgamma(degree + 2)
    return math.exp(logarithm) if logarithm < 0 else math.inf


def polynomial(given: Triples) -> Tensor:
    """exp replaced by its Taylor polynomial, which factors exactly: linear in the number of tokens.

    sum_alpha prod_c (scale s_c)^alpha_c / alpha_c!  (q / s_q)^alpha  mean_j (k1_j / s_1)^alpha [v1_j, 1]  ...

    s are the sizes of channels and s_c their products, so that no power of an entry is above 1. Scores that may be so
    large that sums overflow are made smaller, all of a head by one factor: there the highest power outweighs the
    others, and the factor cancels.
    """
    sets = [given.q, *given.keys]
    wide = accumulation_type(given.q)
    largest = LARGEST ** (3 / len(sets))
    q, *keys = (bounded(x.to(wide), largest) for x in sets)
    senders = [None if mask is None else mask.transpose(-1, -2) for mask in given.masks]
    keys = [k if there is None else k.masked_fill(~there, 0) for k, there in zip(keys, senders, strict=True)]
    sizes = channel_sizes(q, keys)
    floors = sizes.clamp(min=1 / LARGEST)  # a channel of zeros has gradients
    # The largest R with R^g / g! <= MOST.
    most = math.exp((math.log(MOST) + math.lgamma(given.degree + 1)) / max(given.degree, 1))
    scores = abs(given.scale) * sizes.prod(0).sum(-1, keepdim=True)
    rates = given.scale * floors.prod(0) * (most / scores).clamp(max=1)
    coefficients = torch.tensor(_coefficients(q.shape[-1], given.degree), dtype=wide, device=q.device)
    sums = (monomials(rates, given.degree) * coefficients).transpose(-1, -2)
    for key, size, value, there in zip(keys, floors[1:], given.values, senders, strict=True):
        weights = monomials(key / size, given.degree) / key.shape[-2]
        if there is not None:
            weights = weights * there
        ones = torch.ones_like(value[..., :1], dtype=wide)
        sums = sums * (weights.transpose(-1, -2) @ torch.cat((value.to(wide), ones), -1))
    both = monomials(q / floors[0], given.degree) @ sums
    above, below = both[..., :-1], both[..., -1:]
    there = below > 0  # 0 where no tuple takes part, and by rounding for scores far beyond every bound
    return torch.where(there, above / torch.where(there, below, 1), 0).to(given.q.dtype)


def _plain_cannot(given: Triples) -> str | None:
    if given.coupling.watched:
        return "the couplings are observed"
    if given.coupling.training and given.coupling.dropout:
        return "there is dropout"
    return None if given.coupling.is_plain_softmax else f"it does not support {given.coupling}"


def _streamed_cannot(given: Triples) -> str | None:
    if torch.compiler.is_compiling():
        return "it has a backward pass of its own, which is not compiled"
    return fallback_reason() or _plain_cannot(given)


def _polynomial_cannot(given: Triples) -> str | None:
    for mask in given.masks:
        if mask is not None and (mask.dim() < 2 or mask.shape[-2] != 1):
            return "a mask differs between receivers"
    return _plain_cannot(given)


METHODS: dict[str, tuple[Callable[[Triples], Tensor], Callable[[Triples], str | None]]] = {
    "streamed": (streamed, _streamed_cannot),
    "exact": (exact, lambda given: None),
    "polynomial": (polynomial, _polynomial_cannot),
}
"""Name -> (function, why it cannot run: None if it can), the preferred first."""


def attend_tuples(given: Triples, method: str = "auto") -> Tensor:
    """The output of each receiver: (batch, heads, receivers, pose)."""
    if 0 in (given.q.numel(), *(x.numel() for x in (*given.keys, *given.values))):
        check_choice("method", method, ["auto", *METHODS])
        return exact(given)  # which needs no largest entry
    return execute(METHODS, given, method, always="exact")
