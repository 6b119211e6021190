"""Routing as inference: votes, loops, the plain mechanisms where they are the same, seeds, refusals."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mereo.core import Coupling, DenseVotes, squash
from mereo.errors import UsageError
from mereo.mechanisms.routing import route_by_agreement
from papers.common.constellations import (
    Constellations,
    make_constellations,
    make_templates,
    similarity_basis,
)
from papers.common.partition_metrics import adjusted_rand_index
from papers.constellations.generative_capsule_model import GenerativeCapsuleModel
from papers.constellations.routing_inference import ROUTINGS, PoseVotes, pair_votes, point_votes, route_constellations

D = torch.float64
TEMPLATES = make_templates()
MODEL = GenerativeCapsuleModel(similarity_basis(TEMPLATES.points), TEMPLATES.owner)


def data(images: int = 3, **options: Any) -> Constellations:
    return make_constellations(images, torch.Generator().manual_seed(0), **options)


def route(points: Tensor, mask: Tensor, seed: int = 0, **options: Any) -> Tensor:
    return route_constellations(MODEL, points, mask, torch.Generator().manual_seed(seed), **options)


def test_the_votes_of_all_points_of_an_object_average_to_its_pose() -> None:
    pose = torch.randn(4, dtype=D)
    points = (MODEL.basis @ pose).unsqueeze(0)
    pose_votes = point_votes(MODEL, points, torch.ones(1, 11, dtype=torch.bool))
    assert pose_votes.votes.shape == (1, 11, 11, 4)
    right = pose_votes.votes[0].diagonal().T
    for number in range(3):
        torch.testing.assert_close(right[TEMPLATES.owner == number].mean(0), pose)
    assert (right - pose).norm(dim=-1).min() > 0.1, "no single point votes for the pose"


def test_pairs_of_points_vote_for_the_pose() -> None:
    pose = torch.randn(4, dtype=D)
    points = (MODEL.basis @ pose).unsqueeze(0)
    pose_votes = pair_votes(MODEL, points, torch.arange(11).unsqueeze(0) != 5)
    assert pose_votes.votes.shape == (1, 30, 110, 4) and pose_votes.member.sum(1).tolist() == [12, 6, 12]
    assert (pose_votes.incidence.sum(1) == 2).all() and pose_votes.mask.sum() == 90
    # Children and hypotheses are ordered pairs in the same order: first point, then second.
    pairs = [(a, b) for a in range(11) for b in range(11) if a != b]
    right = [i for i, (a, b) in enumerate(pairs) if TEMPLATES.owner[a] == TEMPLATES.owner[b]]
    for hypothesis, child in enumerate(right):
        torch.testing.assert_close(pose_votes.votes[0, hypothesis, child], pose)
    assert pose_votes.incidence[3].nonzero().squeeze(-1).tolist() == list(pairs[3])


def softmax_by_loops(scores: list[list[float]]) -> list[list[float]]:
    """Over hypotheses, for each child: scores[h][c]."""
    out = [[0.0] * len(scores[0]) for _ in scores]
    for c in range(len(scores[0])):
        top = max(row[c] for row in scores)
        total = sum(math.exp(row[c] - top) for row in scores)
        for h, row in enumerate(scores):
            out[h][c] = math.exp(row[c] - top) / total
    return out


def by_loops(routing: str, pose_votes: PoseVotes, start: Tensor, image: int, steps: int) -> list[list[float]]:
    """The couplings of one image, hypothesis by hypothesis and child by child."""
    H, C = start.shape
    V, there = pose_votes.votes[image], pose_votes.mask[image]
    owner = pose_votes.member.argmax(0).tolist()
    scores = start.tolist()
    for step in range(1, steps):
        couplings = softmax_by_loops(scores)
        for k in range(len(pose_votes.member)):
            own = [(h, c) for h in range(H) for c in range(C) if owner[h] == k and there[c]]
            if routing == "dynamic":
                total = sum(couplings[h][c] * V[h, c] for h, c in own)
                for h, c in own:
                    scores[h][c] += (V[h, c] @ squash(total)).item()
                continue
            mass = sum(couplings[h][c] for h, c in own)
            mean = sum(couplings[h][c] * V[h, c] for h, c in own) / mass
            var = sum(couplings[h][c] * (V[h, c] - mean) ** 2 for h, c in own) / mass + 1e-6
            log_a = torch.nn.functional.logsigmoid(-0.01 * (1 - 0.95**step) * mass * var.log().sum() / 2)
            normal = torch.distributions.Normal(mean, var.sqrt())
            for h, c in own:
                scores[h][c] = (log_a + normal.log_prob(V[h, c]).sum()).item()
    return softmax_by_loops(scores)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_equals_loops(routing: str, steps: int) -> None:
    drawn = data(noise=0.1)
    pose_votes = point_votes(MODEL, drawn.points, drawn.mask)
    start = torch.randn(3, 1, 11, 11, dtype=D)
    couplings = ROUTINGS[routing](pose_votes, start, Coupling("receivers"), steps)
    for image in range(3):
        expected = torch.tensor(by_loops(routing, pose_votes, start[image, 0], image, steps), dtype=D)
        torch.testing.assert_close(couplings[image, 0][:, drawn.mask[image]], expected[:, drawn.mask[image]])
        assert (couplings[image, 0][:, ~drawn.mask[image]] == 0).all()


def test_objects_of_one_part_are_routed_as_by_the_mechanism() -> None:
    children, weight = torch.randn(2, 6, 2, dtype=D), torch.randn(3, 1, 2, 4, dtype=D).expand(3, 6, 2, 4)
    votes, start = DenseVotes(children, weight), torch.randn(2, 1, 3, 6, dtype=D)
    pose_votes = PoseVotes(votes.dense().squeeze(1), torch.eye(3, dtype=D), torch.ones(2, 6) > 0, torch.eye(6, dtype=D))
    couplings = ROUTINGS["dynamic"](pose_votes, start, Coupling("receivers"), 3)
    expected = route_by_agreement(votes, Coupling("receivers"), start, 3)
    torch.testing.assert_close(squash(votes.combine(couplings)), expected)


def test_pairs_find_more_than_points() -> None:
    drawn = data(60)
    found = {
        children: route(drawn.points, drawn.mask, routing="em", children=children, steps=10)
        for children in ("points", "pairs")
    }
    index = {name: adjusted_rand_index(labels, drawn.labels, drawn.mask).mean() for name, labels in found.items()}
    assert index["pairs"] > 0.45 and index["points"] < 0.25


def test_absent_points_and_other_images_do_not_matter_and_seeds_repeat() -> None:
    drawn = data(4)
    labels = route(drawn.points, drawn.mask, routing="em", children="pairs")
    moved = drawn.points.masked_fill(~drawn.mask.unsqueeze(-1), 0.3)
    assert torch.equal(route(moved, drawn.mask, routing="em", children="pairs")[drawn.mask], labels[drawn.mask])
    alone = route(drawn.points[:1], drawn.mask[:1], routing="em", children="pairs")
    assert torch.equal(alone[drawn.mask[:1]], labels[:1][drawn.mask[:1]])
    other = route(drawn.points, drawn.mask, seed=1, routing="em", children="pairs")
    assert not torch.equal(other, labels)


def test_wrong_arguments() -> None:
    drawn = data()
    with pytest.raises(UsageError, match=r"routing is 'dynamics'.*Did you mean 'dynamic'"):
        route(drawn.points, drawn.mask, routing="dynamics")
    with pytest.raises(UsageError, match="children is 'pair'"):
        route(drawn.points, drawn.mask, routing="em", children="pair")
    with pytest.raises(UsageError, match="steps is 0"):
        route(drawn.points, drawn.mask, routing="em", steps=0)
