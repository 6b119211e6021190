"""How the scores of an associative memory become weights.

A separation is a function (scores (..., queries, patterns), mask or None) -> weights of the shape of scores; a masked
pattern weighs exactly 0. Every `Coupling` over the senders is one. Here are the separations that no coupling computes:

    power(k)      w = max(s, 0)^k        / sum       (square root: k = 0.5)
    logarithm()   w = log(1 + max(s, 0)) / sum
    maximum()     w = 1 for the largest, equals share it; no gradient
    threshold(t)  w = 1 if s > t else 0; no gradient
    entmax(a)     between softmax (a = 1) and sparsemax (a = 2)

Reference: arXiv:2202.04557. Deviates: the authors' code takes the logarithm of s itself and powers of signed
scores, which turn the signs of even powers; here scores below zero weigh nothing.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from mereo.core import Coupling, normalisers
from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_choice, check_positive

Separation = Callable[[Tensor, Tensor | None], Tensor]
_TINY = 1e-12


def _pointwise(function: Callable[[Tensor], Tensor], normalise: bool) -> Separation:
    """Each score by itself, then divided by the sum over the senders that take part; zeros if that sum is zero."""

    def separate(scores: Tensor, mask: Tensor | None = None) -> Tensor:
        weights = function(scores.to(accumulation_type(scores)))
        if mask is not None:
            weights = weights.masked_fill(~mask, 0)
        if normalise:
            total = weights.sum(-1, keepdim=True)
            weights = weights / total.masked_fill(total == 0, 1)
        return weights.to(scores.dtype)

    return separate


def _competing(function: Callable[[Tensor], Tensor]) -> Separation:
    """Scores against each other: one that is masked out counts as the lowest possible number."""

    def separate(scores: Tensor, mask: Tensor | None = None) -> Tensor:
        wide = scores.to(accumulation_type(scores))
        if mask is None:
            return function(wide).to(scores.dtype)
        weights = function(wide.masked_fill(~mask, torch.finfo(wide.dtype).min))
        return weights.masked_fill(~mask, 0).to(scores.dtype)

    return separate


def power(k: float, *, rectify: bool = True, normalise: bool = True) -> Separation:
    """w = s^k; with `rectify` w = max(s, 0)^k, and with `normalise` w is divided by its sum."""
    check_positive(k=k)
    if not rectify and k != int(k):
        raise UsageError(f"k is {k} with rectify=False; a power of signed scores must be whole.")

    def raise_to(scores: Tensor) -> Tensor:
        base = scores.clamp(min=0) if rectify else scores
        # Below k = 1 the slope at zero is infinite: move the root a little to the left.
        return (base + _TINY).pow(k) - _TINY**k if k < 1 else base.pow(k)

    return _pointwise(raise_to, normalise)


def logarithm(*, normalise: bool = True) -> Separation:
    """w = log(1 + max(s, 0)), divided by its sum with `normalise`."""
    return _pointwise(lambda scores: scores.clamp(min=0).log1p(), normalise)


def threshold(theta: float) -> Separation:
    """w = 1 where s > theta, else 0."""
    return _pointwise(lambda scores: (scores > theta).to(scores.dtype), normalise=False)


def maximum() -> Separation:
    """w = 1 for the largest score; equals share it, so that the order of patterns does not matter."""

    def winner(scores: Tensor) -> Tensor:
        best = (scores == scores.amax(-1, keepdim=True)).to(scores.dtype)
        return best / best.sum(-1, keepdim=True)

    return _competing(winner)


def top_k(k: int) -> Separation:
    """Softmax over the k largest scores, 0 elsewhere."""
    return Coupling("senders", "top_k", top_k=k)


def entmax(alpha: float) -> Separation:
    """The sparse family: softmax at alpha = 1, sparsemax at 2; by sorting if that is known, else by bisection."""
    known = {1.0: "softmax", 1.5: "entmax15", 2.0: "sparsemax"}
    if alpha in known:
        return Coupling("senders", known[alpha])
    if not 1 < alpha < 2:
        raise UsageError(f"alpha is {alpha}; it must be at least 1 and at most 2.")
    return _competing(partial(normalisers.entmax, dim=-1, alpha=alpha))


SEPARATIONS: dict[str, Callable[[], Separation]] = {
    "identity": partial(Coupling, "senders", "none"),
    "sqrt": partial(power, 0.5),
    "log": logarithm,
    "softmax": partial(Coupling, "senders", "softmax"),
    "sparsemax": partial(Coupling, "senders", "sparsemax"),
    "entmax15": partial(Coupling, "senders", "entmax15"),
    "max": maximum,
}
"""The separations without an argument of their own, made by name; the others are made by their functions."""


def get_separation(separation: str | Separation) -> Separation:
    """The separation of that name, or the one given."""
    if not isinstance(separation, str):
        return separation
    check_choice("separation", separation, SEPARATIONS)
    return SEPARATIONS[separation]()
