"""Routing by agreement as it is written, with votes and scores as tensors: the plain twin of every faster way."""

from typing import NamedTuple

import torch
from torch import Tensor

from mereo.core.coupling import Coupling
from mereo.core.settle import settle
from mereo.core.squash import squash
from mereo.core.votes import DenseVotes, Votes


def route_by_agreement(
    votes: Votes,
    coupling: Coupling,
    scores: Tensor,
    steps: int,
    *,
    bias: Tensor | float = 0.0,
    detach_routing: bool = False,
) -> Tensor:
    """The procedure alone: `steps` evaluations of couplings and parents, scores growing by agreement in between.

    Args:
        votes: what each child says to each parent.
        coupling: normalises over the parents.
        scores: the logits to start from, (batch, heads, receivers, senders).
        steps: number of passes, at least 1.
        bias: added to each parent before squashing, broadcastable to (batch, heads, receivers, pose).
        detach_routing: let gradients flow through the last pass alone.

    Shapes: -> (batch, heads, receivers, pose).
    """

    def parents(scores: Tensor) -> Tensor:
        return squash(votes.combine(coupling(scores)) + bias)

    def agree(scores: Tensor) -> Tensor:
        return scores + votes.agree(parents(scores))

    if detach_routing:
        with torch.no_grad():
            grown = settle(agree, scores, steps=steps - 1) - scores
        # The logits to start from are part of the last pass: a learned prior still learns.
        scores = scores + grown
    else:
        scores = settle(agree, scores, steps=steps - 1)
    return parents(scores)


class Routing(NamedTuple):
    """One call: what to route, and how. Shapes as in `mereo.core.kernels.routing.route`."""

    children: Tensor
    weight: Tensor
    coupling: Coupling
    steps: int
    prior: Tensor | None = None
    bias: Tensor | None = None
    detach_routing: bool = False
    tile: int | None = None


def plain(call: Routing) -> Tensor:
    """The whole call with its votes as a tensor: (batch, receivers, d_out)."""
    receivers, senders = call.weight.shape[:2]
    start = call.children.new_zeros(receivers, senders) if call.prior is None else call.prior
    if call.coupling.normaliser == "none":
        # Without routing the scores are the couplings, 1 each.
        start = start + 1
    return route_by_agreement(
        DenseVotes(call.children, call.weight),
        call.coupling,
        start.expand(call.children.shape[0], 1, receivers, senders),
        call.steps,
        bias=0.0 if call.bias is None else call.bias,
        detach_routing=call.detach_routing,
    ).squeeze(1)
