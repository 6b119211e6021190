"""Dynamic routing and EM routing in place of variational inference, on the templates of a generative capsule model.

A child is shared out among hypotheses, each of which is something of one object, and the votes for an object are
the votes of all its hypotheses. There are two kinds of children:

    points   hypotheses are the parts n, the vote is F_n^T x: half of a pose, for a point has two numbers. The votes of
             all points of a complete object have its pose as their mean, but they do not coincide.
    pairs    hypotheses are the pairs of parts of one object, the vote is the one pose that puts these on the points.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from mereo.core import Coupling, settle, squash
from mereo.errors import check_choice, check_steps
from mereo.mechanisms.routing.em import fit_clusters, inverse_temperatures, vote_scores
from papers.constellations.generative_capsule_model import GenerativeCapsuleModel


class PoseVotes(NamedTuple):
    """Predictions of the children of some images, for every hypothesis.

    Attributes:
        votes (images, hypotheses, children, pose).
        member (objects, hypotheses): 1 where a hypothesis is of the object.
        mask (images, children).
        incidence (children, slots): 1 where a child is made of the point.
    """

    votes: Tensor
    member: Tensor
    mask: Tensor
    incidence: Tensor


def point_votes(model: GenerativeCapsuleModel, points: Tensor, mask: Tensor) -> PoseVotes:
    """F_n^T x_m: see the head of this file. Shapes: points (images, slots, 2), mask (images, slots)."""
    member = one_hot(model.owner, model.objects).T.to(points.dtype)
    votes = torch.einsum("nde,bsd->bnse", model.basis, points)
    return PoseVotes(votes, member, mask, torch.eye(points.shape[1], dtype=points.dtype, device=points.device))


def pair_votes(model: GenerativeCapsuleModel, points: Tensor, mask: Tensor) -> PoseVotes:
    """The pose that puts two parts of an object on two points, for similarity transforms.

    Shapes: points (images, slots, 2), mask (images, slots), at least two points an image.
    """
    first, second = torch.cartesian_prod(*[torch.arange(points.shape[1], device=points.device)] * 2).T
    first, second = first[first != second], second[first != second]
    a, b = torch.cartesian_prod(*[torch.arange(len(model.owner), device=points.device)] * 2).T
    related = (a != b) & (model.owner[a] == model.owner[b])
    a, b = a[related], b[related]
    poses = torch.linalg.inv(torch.cat((model.basis[a], model.basis[b]), 1))
    votes = torch.einsum("hef,bpf->bhpe", poses, torch.cat((points[:, first], points[:, second]), -1))
    incidence = one_hot(first, points.shape[1]) + one_hot(second, points.shape[1])
    member = one_hot(model.owner[a], model.objects).T
    return PoseVotes(votes, member.to(points.dtype), mask[:, first] & mask[:, second], incidence.to(points.dtype))


CHILDREN: dict[str, Callable[[GenerativeCapsuleModel, Tensor, Tensor], PoseVotes]] = {
    "points": point_votes,
    "pairs": pair_votes,
}
"""The kinds of children."""


def _dynamic(given: PoseVotes, scores: Tensor, coupling: Coupling, steps: int) -> Tensor:
    """b += <vote, v_k>, where v_k = squash of the sum of the votes for object k: the last couplings."""

    def step(scores: Tensor) -> Tensor:
        couplings = coupling(scores, given.mask[:, None, None]).squeeze(1)
        whole = squash(torch.einsum("bhc,bhce,kh->bke", couplings, given.votes, given.member))
        return scores + torch.einsum("bhce,bke,kh->bhc", given.votes, whole, given.member).unsqueeze(1)

    return coupling(settle(step, scores, steps=steps - 1), given.mask[:, None, None])


def _em(given: PoseVotes, scores: Tensor, coupling: Coupling, steps: int) -> Tensor:
    """Fit a Gaussian to the votes for each object, score every vote by its object's: the last couplings."""
    beta = given.votes.new_zeros(len(given.member))
    votes = given.votes.flatten(1, 2).unsqueeze(1).expand(-1, len(given.member), -1, -1)

    def step(scores: Tensor, temperature: float) -> Tensor:
        couplings = coupling(scores, given.mask[:, None, None])
        weights = (couplings * given.member[None, :, :, None]).flatten(2)
        clusters = fit_clusters(votes, weights, beta, beta, temperature, 1e-6)
        fits = vote_scores(votes, clusters).unflatten(2, scores.shape[2:])
        return (fits * given.member[None, :, :, None]).sum(1, keepdim=True)

    scores = settle(step, scores, steps=inverse_temperatures(steps, 0.01)[:-1])
    return coupling(scores, given.mask[:, None, None])


ROUTINGS: dict[str, Callable[[PoseVotes, Tensor, Coupling, int], Tensor]] = {"dynamic": _dynamic, "em": _em}
"""How the couplings of children and hypotheses, (images, 1, hypotheses, children), are computed."""


def route_constellations(
    model: GenerativeCapsuleModel,
    points: Tensor,
    mask: Tensor,
    generator: torch.Generator,
    *,
    routing: str,
    children: str = "points",
    steps: int = 3,
) -> Tensor:
    """Label every point by routing: the object that takes most of the children it belongs to.

    Routing starts from random scores: from equal ones, two objects of the same shape would stay alike for ever. It has
    no bound for choosing among starts, and no place for clutter.

    Args:
        model: whose templates are routed to; how it assigns points does not matter.
        points, mask: where the points are, and which slots have one.
        generator: of the random numbers of the start.
        routing: "dynamic" or "em".
        children: "points" or "pairs".
        steps: evaluations of the couplings, at least 1.

    Shapes: points (images, slots, 2), mask (images, slots) -> labels (images, slots).

    Reference: arXiv:1710.09829, procedure 1; Hinton, Sabour, Frosst 2018 (ICLR), procedure 1.
    """
    check_choice("routing", routing, ROUTINGS)
    check_choice("children", children, CHILDREN)
    check_steps(1, steps=steps)
    given = CHILDREN[children](model, points, mask)
    size = given.votes.shape[:-1]
    start = torch.rand(size, generator=generator, dtype=points.dtype, device=generator.device).to(points.device)
    couplings = ROUTINGS[routing](given, start.log().unsqueeze(1), Coupling("receivers"), steps)
    shares = torch.einsum("bhc,kh,cs->bsk", couplings.squeeze(1), given.member, given.incidence)
    return shares.argmax(-1)
