"""Contributions: their sum is the length before the squash, and each is the product that loops give."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import mereo
from mereo.errors import UsageError
from mereo.explain import observe, vote_contributions
from mereo.mechanisms.routing import CrossAgreementRouting, SelfAttentionRouting
from mereo.models import CapsuleClassifier
from routed_children import children_and_transforms

Make = Callable[..., CapsuleClassifier]
MakeImages = Callable[..., Tensor]


def by_loops(model: CapsuleClassifier, observation: object, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Contributions and the unsquashed class capsules, sender by sender."""
    exchange = observation.exchanges["head.coupling"]
    senders = exchange.inputs[1 if isinstance(model.head, CrossAgreementRouting) else 0]
    rows, sums = [], []
    for b, c in enumerate(classes.tolist()):
        v = observation.capsules.pose[b, c]
        row, s = [], torch.zeros_like(v)
        for k, (sender, weight) in enumerate(children_and_transforms(model.head, senders, b, c)):
            coupling = observation.trace["head.coupling"][b, 0, c, k]
            if isinstance(model.head, SelfAttentionRouting):
                coupling = coupling + model.head.log_prior[c, k]
            vote = coupling * (weight.T @ sender)
            row.append(vote @ v / v.norm())
            s = s + vote
        rows.append(torch.stack(row))
        sums.append(s)
    return torch.stack(rows).detach(), torch.stack(sums).detach()


@pytest.mark.parametrize("asked", [None, [0, 1]])
def test_contributions_sum_to_the_length(
    model: CapsuleClassifier, asked: list[int] | None, some_images: MakeImages
) -> None:
    observation = observe(model, some_images(model))
    classes = observation.capsules.activation.argmax(1) if asked is None else torch.tensor(asked)
    found = vote_contributions(observation, None if asked is None else classes)
    expected, sums = by_loops(model, observation, classes)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    poses = observation.capsules.pose[torch.arange(2), classes]
    along = (sums * poses).sum(1) / poses.norm(dim=1)
    torch.testing.assert_close(found.sum(1), along, atol=1e-5, rtol=1e-5)
    if getattr(model.head, "bias", None) is None:
        torch.testing.assert_close(found.sum(1), sums.norm(dim=1), atol=1e-5, rtol=1e-5)


def test_what_gets_no_coupling_contributes_nothing(make: Make, some_images: MakeImages) -> None:
    model = make("three scales")

    def drop_first(couplings: Tensor) -> Tensor:
        return couplings * torch.tensor([0.0, 1, 1, 1])

    with mereo.intervene(model, {"head.coupling": drop_first}):
        found = vote_contributions(observe(model, some_images(model)))
    assert found[:, 0].eq(0).all() and found[:, 1:].ne(0).all()


def test_unknown_routing_gives_none(make: Make) -> None:
    observation = observe(make("three scales"), torch.rand(1, 1, 32, 32))
    observation.exchanges.clear()
    assert vote_contributions(observation) is None


@pytest.mark.parametrize(
    "classes", [torch.tensor([0]), torch.tensor([0.0, 1.0]), torch.tensor([0, 10]), torch.tensor([-1, 0])]
)
def test_wrong_classes(classes: Tensor, make: Make) -> None:
    observation = observe(make("three scales"), torch.rand(2, 1, 32, 32))
    with pytest.raises(UsageError, match="classes"):
        vote_contributions(observation, classes)
