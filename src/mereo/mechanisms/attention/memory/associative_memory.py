"""Associative memories: compare a query with every stored pattern, sharpen the scores, return the weighted patterns.

Source: Millidge, Salvatori, Song, Lukasiewicz, Bogacz 2022, arXiv:2202.04557; energies: Ramsauer et al. 2020,
arXiv:2008.02217.
Cost: 2 Q N (d + v) FLOPs a step; the Manhattan similarity runs as one pairwise-distance call.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mereo.core import SameVotes, lengths, log_mean_exp, settle
from mereo.core.similarity import SIMILARITIES
from mereo.errors import UsageError, check_choice, check_not_negative, check_positive, check_steps, unknown
from mereo.mechanisms.attention.memory import separation as separations
from mereo.mechanisms.attention.memory.separation import Separation, get_separation


def _rows(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """A mask with an axis of queries."""
    return mask.unsqueeze(-2) if mask is not None and mask.dim() < query.dim() else mask


def retrieve(
    query: Tensor,
    memory: Tensor,
    values: Tensor | None = None,
    similarity: str = "dot",
    separation: str | Separation = "softmax",
    beta: float = 1.0,
    steps: int = 1,
    mask: Tensor | None = None,
    *,
    activation: str = "identity",
) -> tuple[Tensor, Tensor]:
    """Retrieve from an associative memory: agree, couple, combine, with the memory as senders.

    w = separation(beta similarity(q, M)),   out = activation(sum_n w_n P_n);   `steps` times with q <- out

    Args:
        query: the known part of the patterns to find.
        memory: the stored patterns M.
        values: the patterns P that are returned for them; the memory itself by default.
        similarity: a name of `mereo.core.similarity.SIMILARITIES`.
        separation: a name of `SEPARATIONS`, or a function (scores, mask) -> weights such as `power(3)` or a `Coupling`.
        beta: multiplies the similarity, so each similarity needs a beta of its own; at least 0.
        steps: how often; above 1 the values need the size of the memory's patterns, for the output is the next query.
        mask: bool, True = takes part; the weight of other patterns is 0.
        activation: "identity", or "sign" for bipolar patterns.

    Shapes:
        query (batch, queries, d), memory (batch or 1, patterns, d), values (batch or 1, patterns, v),
        mask (batch, patterns) or (batch, queries, patterns) -> out (batch, queries, v), weights
        (batch, queries, patterns). More axes may stand between batch and the last two.

    Reads as: weights[b, q, n] is the share of stored pattern n in the output for query q, at the last step.

    Deviates: the authors' code optionally divides scores and weights by their sums, which turns signs where the sum is
        negative; here a separation declares that it divides, and it divides only non-negative weights.

    Reference: arXiv:2202.04557, the general form z = P sep(sim(M, q)).
    """
    check_choice("similarity", similarity, SIMILARITIES)
    check_choice("activation", activation, ("identity", "sign"))
    check_steps(1, steps=steps)
    check_not_negative(beta=beta)
    values = memory if values is None else values
    if steps > 1 and values.shape[-1] != query.shape[-1]:
        raise UsageError(
            f"steps is {steps} with values of size {values.shape[-1]} and queries of size {query.shape[-1]};"
            " more than one step needs equal sizes."
        )
    compare, separate, votes = SIMILARITIES[similarity], get_separation(separation), SameVotes(values)
    rows = _rows(mask, query)

    def weigh(query: Tensor) -> Tensor:
        return separate(beta * compare(query, memory), rows)

    def read(weights: Tensor) -> Tensor:
        out = votes.combine(weights)
        return out.sign() if activation == "sign" else out

    query = settle(lambda query: read(weigh(query)), query, steps=steps - 1)
    weights = weigh(query)
    return read(weights), weights


def energy(
    query: Tensor, memory: Tensor, *, alpha: float = 1.0, beta: float = 1.0, mask: Tensor | None = None
) -> Tensor:
    """The energy that retrieval by inner products and softmax (alpha = 1) or entmax never raises.

    alpha = 1:  E(q) = -1/beta log sum_n exp(beta <x_n, q>) + |q|^2 / 2 + 1/beta log N + max_n |x_n|^2 / 2  >= 0
    alpha > 1:  E(q) = -1/beta max_p [beta <p, X q> - (sum_n p_n^alpha - 1) / (alpha (alpha - 1))] + |q|^2 / 2

    Args:
        alpha: 1 for softmax, 1.5, 2 for sparsemax, or anything between 1 and 2.
        beta: multiplies the inner products; above 0.
        mask: bool, True = takes part.

    Shapes:
        query (batch, queries, d), memory (batch or 1, patterns, d), mask (batch, patterns) or
        (batch, queries, patterns) -> (batch, queries); infinite where no pattern takes part.

    Deviates: the constants that make the energy non-negative are added only for softmax, for which they are known.

    Reference: arXiv:2008.02217, eq. 2; the sparse form follows arXiv:2309.12673.
    """
    check_positive(beta=beta)
    scores, rows = SameVotes(memory).agree(query), _rows(mask, query)
    kinetic = query.square().sum(-1) / 2
    if alpha == 1:
        sizes = lengths(memory, eps=0.0).unsqueeze(-2).expand_as(scores)
        largest = (sizes if rows is None else sizes.masked_fill(~rows, 0)).amax(-1)
        mask = None if rows is None else rows.expand_as(scores)
        return kinetic - log_mean_exp(beta * scores, -1, mask) / beta + largest.square() / 2
    # At the maximum the derivative through p vanishes, so p is a constant.
    p = separations.entmax(alpha)(beta * scores.detach(), rows)
    conjugate = (p * beta * scores).sum(-1) - (p.pow(alpha).sum(-1) - 1) / (alpha * (alpha - 1))
    if rows is not None:
        conjugate = conjugate.masked_fill(~rows.any(-1), -torch.inf)
    return kinetic - conjugate / beta


@dataclass(frozen=True)
class AssociativeMemory:
    """A pair of functions that makes a memory, with its constants; call it as `retrieve`.

    Attributes:
        similarity, separation, beta, activation: see `retrieve`.
    """

    similarity: str
    separation: str | Separation
    beta: float = 1.0
    activation: str = "identity"

    def __call__(
        self,
        query: Tensor,
        memory: Tensor,
        values: Tensor | None = None,
        *,
        steps: int = 1,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`retrieve` with this pair."""
        return retrieve(
            query, memory, values, self.similarity, self.separation, self.beta, steps, mask, activation=self.activation
        )


MEMORIES: dict[str, Callable[..., AssociativeMemory]] = {
    # Hopfield 1982, bipolar patterns; its zeroed diagonal is left out.
    "classical": lambda: AssociativeMemory("dot", "identity", activation="sign"),
    # Kanerva's sparse distributed memory: every pattern within a radius counts alike.
    "sdm": lambda theta: AssociativeMemory("hamming", separations.threshold(theta)),
    # Dense associative memory.
    "dam": lambda k: AssociativeMemory("dot", separations.power(k)),
    # Modern continuous Hopfield network: attention.
    "mchn": lambda beta=1.0: AssociativeMemory("dot", "softmax", beta),
    # Posterior mean of a mixture of Gaussians with equal weights and variance 1 / (2 beta).
    "gaussian": lambda beta=1.0: AssociativeMemory("neg_euclidean", "softmax", beta),
    # Exact once the margin of a pattern suffices.
    "sparse": lambda alpha=1.5, beta=1.0: AssociativeMemory("dot", separations.entmax(alpha), beta),
    "topk": lambda k, beta=1.0: AssociativeMemory("dot", separations.top_k(k), beta),
}
"""The memories of the literature as pairs of functions, with the parameter each of them has."""


def associative_memory(name: str, **arguments: float) -> AssociativeMemory:
    """The memory of that name: classical, sdm(theta), dam(k), mchn(beta), gaussian(beta), sparse(alpha), topk(k).

    associative_memory("mchn", beta=8.0)(query, memory)
    """
    if name not in MEMORIES:
        raise unknown("memory", name, MEMORIES)
    signature = inspect.signature(MEMORIES[name])
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise UsageError(f"memory {name!r} takes {signature}; {error}.") from None
    return MEMORIES[name](**arguments)
