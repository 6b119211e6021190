"""Which part voted for which whole: what each sender's coupled vote adds to the length of a capsule.

    contribution_s = c_s <vote_s, v> / |v|,      sum_s contribution_s = <s, v> / |v| = |s|

where s = sum_s c_s vote_s is the capsule before it is squashed to v. A squash keeps the direction, so the sum is the
length before the squash; a negative contribution is a vote against. A learned bias belongs to no sender and is left
out.

If the senders of the class routing have no position, because an earlier routing made them, contributions are computed
for the earlier senders n. A squash multiplies a capsule r by a number g_r, and votes are linear in the poses, so that

    contribution_n = sum_r g_r c_rn <vote_rn, a_r>,   a_r = the derivative of all contributions by the pose of r

sums to the same length, apart from biases.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mereo.core import Grid, Votes, lengths
from mereo.core.squash import EPS
from mereo.explain.observation import Exchange, Observation
from mereo.explain.target import chosen_classes


def exchange_contributions(exchange: Exchange, couplings: Tensor, images: Tensor, receivers: Tensor) -> Tensor | None:
    """The contribution of each sender of a routing to the length of its receivers, before the squash.

    Args:
        exchange, couplings: the pass through the routing, and its couplings, both from an observation.
        images, receivers: index of the image and of the receiver of each pair, int64 (pairs,).

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
    """The contribution of each sender of the class routing to the length of a class capsule, before the squash.

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


def placed_contributions(observation: Observation, classes: Tensor | None = None) -> list[tuple[Tensor, Grid]]:
    """What each sender that has a place adds to the length of a class capsule, before the squash, grid by grid.

    These are the senders of the class routing; if they have no position, the senders of the routings that made them.

    Args:
        observation: what the model did, from `observe`.
        classes: which class to explain for each image, (batch,); the predicted one when None.

    Shapes: -> contributions (batch, senders of the grid) of each grid; empty if no sender has a position.
    """
    chosen = chosen_classes(observation.scores, classes)
    contributions, grid = vote_contributions(observation, chosen), observation.grids.get(observation.class_coupling)
    if contributions is None:
        return []
    if grid is not None:
        return _by_grid(contributions, grid)
    below = {name: g for name, g in observation.grids.items() if g.feeds is not None and g.through is None}
    inputs = observation.exchanges[observation.class_coupling].inputs
    if len(inputs) != 1 or any(observation.trace[name].layout != torch.strided for name in below):
        return []
    if sum(observation.trace[name].shape[2] for name in below) != contributions.shape[1]:
        return []
    made = [(_earlier_contributions(observation, name, g.feeds or 0, chosen), g) for name, g in below.items()]
    return [part for values, g in made for part in _by_grid(values, g)]


def _by_grid(values: Tensor, grid: Grid) -> list[tuple[Tensor, Grid]]:
    return [(values[:, start : start + part.size], part) for start, part in grid.parts]


def _earlier_contributions(observation: Observation, name: str, first: int, classes: Tensor) -> Tensor:
    """Contributions of the senders of the routing `name`, whose receivers are senders of the class routing from `first`
    on."""
    last, earlier = observation.exchanges[observation.class_coupling], observation.exchanges[name]
    images = torch.arange(len(classes), device=classes.device)
    parents = last.output[images, classes]
    direction = parents / lengths(parents, keepdim=True).clamp(min=EPS**0.5)
    with torch.enable_grad():
        poses = last.inputs[0].detach().requires_grad_()
        fits = torch.einsum("nhse,ne->nhs", last.module.votes(poses).select(images, classes), direction)  # type: ignore[operator]
        (slopes,) = torch.autograd.grad(
            (observation.trace[observation.class_coupling][images, :, classes] * fits).mean(1).sum(), poses
        )
    with torch.no_grad():
        votes = earlier.module.votes(*earlier.inputs)  # type: ignore[operator]
        couplings_of, rows = observation.trace[name].transpose(1, 2), []
        numbers = torch.arange(couplings_of.shape[1], device=classes.device)
        read = slice(first, first + len(numbers))
        for image, couplings in enumerate(couplings_of):
            # All votes of a batch may not fit in memory.
            vote = votes.select(torch.full_like(numbers, image), numbers)
            made = torch.einsum("rhs,rhse->re", couplings, vote) / couplings.shape[1]
            gains = (poses[image, read] * made).sum(-1) / made.square().sum(-1).clamp(min=EPS)
            fits = torch.einsum("rhse,re->rhs", vote, slopes[image, read] * gains.unsqueeze(-1))
            rows.append((couplings * fits).mean(1).sum(0))
        return torch.stack(rows)
