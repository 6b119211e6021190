"""Which part voted for which whole: what each sender's coupled vote adds to the length of a capsule.

    contribution_s = c_s <vote_s, v> / |v|,      sum_s contribution_s = <s, v> / |v| = |s|

where s = sum_s c_s vote_s is the capsule before it is squashed to v. A squash keeps the direction, so the sum is the
length before the squash; a negative contribution is a vote against. A learned bias belongs to no sender and is left
out.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mereo.core import Votes, lengths
from mereo.core.squash import EPS
from mereo.explain.observation import Exchange, Observation, chosen_classes


def exchange_contributions(exchange: Exchange, couplings: Tensor, images: Tensor, receivers: Tensor) -> Tensor | None:
    """What each sender of a routing adds to the length of its receivers, before the squash.

    Args:
        exchange, couplings: the pass through the routing and the couplings of it, both from an observation.
        images, receivers: which receiver of which image, int64 (pairs,).

    Shapes: couplings (batch, heads, receivers, senders) -> (pairs, senders), or None for a module without a method
    `votes` that gives its votes for the same inputs.
    """
    votes_of: Callable[..., Votes] | None = getattr(exchange.module, "votes", None)
    if votes_of is None:
        return None
    parents = exchange.output[images, receivers]
    direction = parents / lengths(parents, keepdim=True).clamp(min=EPS**0.5)
    with torch.no_grad():
        votes = votes_of(*exchange.inputs).select(images, receivers)
        fits = torch.einsum("nhse,ne->nhs", votes, direction)
        return (couplings[images, :, receivers] * fits).mean(1)


def vote_contributions(observation: Observation, classes: Tensor | None = None) -> Tensor | None:
    """What each sender of the class routing adds to the length of a class capsule, before the squash.

    Args:
        observation: what the model did, from `observe`.
        classes: which class to explain for each image, (batch,); the predicted one when None.

    Shapes: -> (batch, senders), or None if the class routing does not give its votes.
    """
    chosen = chosen_classes(observation.scores, classes)
    exchange = observation.exchanges.get(observation.class_coupling)
    if exchange is None:
        return None
    images = torch.arange(len(chosen), device=chosen.device)
    return exchange_contributions(exchange, observation.trace[observation.class_coupling], images, chosen)
