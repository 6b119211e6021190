"""How close a query is to each stored pattern: the first of the three choices that make an associative memory.

Each is a function (query (..., queries, d), memory (..., patterns, d)) -> (..., queries, patterns), larger = closer.
Half precision is computed in float32 and returned in its own type.

    dot                <m, q>
    cosine             <m, q> / (|m| |q|)
    neg_manhattan      -sum_i |m_i - q_i|
    neg_euclidean      -sum_i (m_i - q_i)^2
    inverse_manhattan  1 / (sum_i |m_i - q_i| + eps)
    inverse_euclidean  1 / (sum_i (m_i - q_i)^2 + eps)
    hamming            (d + <m, q>) / 2              on bipolar patterns d - the number of differing entries
    neg_kl             -KL(m || q)                   of patterns divided by their sums
    neg_reverse_kl     -KL(q || m)
    neg_symmetric_kl   -(KL(m || q) + KL(q || m)) / 2

Reference: arXiv:2202.04557. Deviates: the authors' code divides cosine by the length of the whole memory,
here each pattern by its own; their reciprocals are singular where a query meets a pattern, here eps = 1e-4 bounds
them; their divergences are reciprocals, here negated. Hamming is written as an inner product, so that it has a
gradient and reads entries between -1 and 1 as expectations.
"""

from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor

from mereo.core.squash import accumulation_type, lengths

Similarity = Callable[[Tensor, Tensor], Tensor]
EPS = 1e-4
"""Bounds reciprocals, logarithms and, from below, the lengths that cosine divides by."""


def _accumulating(similarity: Similarity) -> Similarity:
    @wraps(similarity)
    def wide(query: Tensor, memory: Tensor) -> Tensor:
        kind = accumulation_type(query)
        return similarity(query.to(kind), memory.to(kind)).to(query.dtype)

    return wide


def dot(query: Tensor, memory: Tensor) -> Tensor:
    """<m, q>."""
    return query @ memory.transpose(-1, -2)


@_accumulating
def cosine(query: Tensor, memory: Tensor) -> Tensor:
    """<m, q> / (|m| |q|); 0 for a pattern or query of length zero."""
    # Its slope close to a zero vector is 1 / eps, which float16 still holds.
    query, memory = (x / lengths(x, keepdim=True, eps=EPS**2) for x in (query, memory))
    return dot(query, memory)


@_accumulating
def neg_manhattan(query: Tensor, memory: Tensor) -> Tensor:
    """-sum_i |m_i - q_i|."""
    return -torch.cdist(query, memory, p=1.0)


@_accumulating
def neg_euclidean(query: Tensor, memory: Tensor) -> Tensor:
    """-sum_i (m_i - q_i)^2, from inner products; clamped, since rounding may leave a small positive number."""
    squares = query.square().sum(-1).unsqueeze(-1) + memory.square().sum(-1).unsqueeze(-2)
    return (2 * dot(query, memory) - squares).clamp(max=0)


@_accumulating
def inverse_manhattan(query: Tensor, memory: Tensor) -> Tensor:
    """1 / (sum_i |m_i - q_i| + eps)."""
    return 1 / (torch.cdist(query, memory, p=1.0) + EPS)


@_accumulating
def inverse_euclidean(query: Tensor, memory: Tensor) -> Tensor:
    """1 / (sum_i (m_i - q_i)^2 + eps)."""
    # By differences: near a pattern the expanded square has no precision left, and the reciprocal magnifies the error.
    distance = torch.cdist(query, memory, compute_mode="donot_use_mm_for_euclid_dist")
    return 1 / (distance.square() + EPS)


@_accumulating
def hamming(query: Tensor, memory: Tensor) -> Tensor:
    """(d + <m, q>) / 2: how many entries of two bipolar patterns are equal."""
    return (query.shape[-1] + dot(query, memory)) / 2


def _distribution(x: Tensor) -> Tensor:
    x = x.clamp(min=0)
    return x / x.sum(-1, keepdim=True).clamp(min=EPS)


def _divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p_n || q_k) for every pair: (..., n, d), (..., k, d) -> (..., n, k)."""
    entropy = (p * (p + EPS).log()).sum(-1, keepdim=True)
    return entropy - p @ (q + EPS).log().transpose(-1, -2)


@_accumulating
def neg_kl(query: Tensor, memory: Tensor) -> Tensor:
    """-sum_i m_i log(m_i / q_i) of non-negative patterns divided by their sums."""
    return -_divergence(_distribution(memory), _distribution(query)).transpose(-1, -2)


@_accumulating
def neg_reverse_kl(query: Tensor, memory: Tensor) -> Tensor:
    """-sum_i q_i log(q_i / m_i) of non-negative patterns divided by their sums."""
    return -_divergence(_distribution(query), _distribution(memory))


@_accumulating
def neg_symmetric_kl(query: Tensor, memory: Tensor) -> Tensor:
    """The mean of both divergences, negated."""
    return (neg_kl(query, memory) + neg_reverse_kl(query, memory)) / 2


SIMILARITIES: dict[str, Similarity] = {
    "dot": dot,
    "cosine": cosine,
    "neg_manhattan": neg_manhattan,
    "neg_euclidean": neg_euclidean,
    "inverse_manhattan": inverse_manhattan,
    "inverse_euclidean": inverse_euclidean,
    "hamming": hamming,
    "neg_kl": neg_kl,
    "neg_reverse_kl": neg_reverse_kl,
    "neg_symmetric_kl": neg_symmetric_kl,
}
