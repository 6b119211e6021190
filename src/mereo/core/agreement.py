"""Routing by agreement: the one loop that every implementation runs.

    V = 0;   `steps` times:   v = update(exchange(V)),   V <- V + v

where exchange(V) = combine(couple(prior + agree(V))): votes combined by their agreement with the sum of the receivers
so far. As `agree` is linear, adding up receivers is adding up scores (arXiv:1710.09829,
procedure 1), and nothing of the size of the scores is kept between passes.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mereo.core.settle import settle
from mereo.core.squash import squash
from mereo.core.votes import Votes

Exchange = Callable[[Tensor | None], Tensor]
"""The sum of the receivers so far, or None before the first pass -> what the receivers are made of."""


def iterate_agreement(
    exchange: Exchange, update: Callable[[Tensor], Tensor], steps: int, *, detach: bool = False
) -> Tensor:
    """Receivers after `steps` passes, at least 1; with `detach` gradients flow only through the last pass."""

    def step(agreed: Tensor | None) -> Tensor | None:
        receivers = update(exchange(agreed))
        return receivers if agreed is None else agreed + receivers

    start: Tensor | None = None
    if detach:
        with torch.no_grad():
            start = settle(step, start, steps=steps - 1)
    else:
        start = settle(step, start, steps=steps - 1)
    return update(exchange(start))


def route_by_agreement(
    votes: Votes,
    coupling: Callable[[Tensor], Tensor],
    scores: Tensor,
    steps: int,
    *,
    bias: Tensor | float = 0.0,
    detach_routing: bool = False,
) -> Tensor:
    """Routing by agreement, executed by the verbs themselves: `steps` evaluations of couplings and parents.

    Args:
        votes: of each child for each parent.
        coupling: scores -> couplings, a `Coupling` over the parents.
        scores: the logits to start from, (batch, heads, receivers, senders).
        steps: number of passes, at least 1.
        bias: added to each parent before squashing, broadcastable to (batch, heads, receivers, pose).
        detach_routing: let gradients flow through the last pass only.

    Shapes: -> (batch, heads, receivers, pose).
    """

    def exchange(agreed: Tensor | None) -> Tensor:
        grown = scores
        if agreed is not None:
            fits = votes.agree(agreed)
            # The logits to start from are part of the last pass: a learned prior still learns.
            grown = scores + (fits.detach() if detach_routing else fits)
        return votes.combine(coupling(grown)) + bias

    return iterate_agreement(exchange, squash, steps, detach=detach_routing)
