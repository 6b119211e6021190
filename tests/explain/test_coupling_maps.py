"""Coupling maps: the shape of the image, the place of the sender with the coupling, and the sums that define them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import mereo
from mereo.explain import Observation, coupling_maps, observe, sender_places
from mereo.explain.coupling_maps import receiver_weights
from mereo.models import CapsuleClassifier

Make = Callable[..., CapsuleClassifier]
MakeImages = Callable[..., Tensor]

PLACED = ["three scales", "unshared, over senders", "two scales", "one scale", "dynamic", "capsnet"]


def test_maps_are_finite_and_of_the_image(model: CapsuleClassifier, some_images: MakeImages) -> None:
    images = some_images(model)
    for batch in (images, torch.zeros_like(images)):
        found = coupling_maps(observe(model, batch))
        assert set(found) == {name for name, grid in sender_places(model).items() if grid}
        for item in found.values():
            assert item.heat.shape == (2, *model.image_shape[1:])
            assert item.heat.isfinite().all() and item.heat.min() >= 0 and item.heat.max() <= 1


@pytest.mark.parametrize("kind", PLACED)
def test_the_heat_peaks_where_the_heard_sender_sits(kind: str, make: Make, some_images: MakeImages) -> None:
    model = make(kind)
    for name, grid in sender_places(model).items():
        if grid is None:
            continue
        row, column = grid.rows - 1, grid.columns // 2
        sender = row * grid.columns + column

        def only(couplings: Tensor, sender: int = sender) -> Tensor:
            alone = torch.zeros_like(couplings)
            alone[..., sender] = 1
            return alone

        with mereo.intervene(model, {name: only}):
            found = coupling_maps(observe(model, some_images(model)))[name]
        y, x = (int(grid.first + n * grid.step - 0.5) for n in (row, column))
        assert (found.heat[:, y, x] == found.heat.amax((1, 2))).all() and (found.heat[:, y, x] > 0).all()
        outside = torch.ones_like(found.cells, dtype=torch.bool)
        outside[:, row, column] = False
        assert found.cells[outside].eq(0).all()


def test_the_class_routing_shows_its_own_couplings(make: Make, some_images: MakeImages) -> None:
    model = make("two scales")
    observation = observe(model, some_images(model))
    asked = torch.tensor([3, 7])
    found = coupling_maps(observation, asked)["head.coupling"]
    torch.testing.assert_close(found.cells.flatten(1), observation.trace["head.coupling"][[0, 1], 0, [3, 7]])
    assert found.receiver.equal(asked) and (found.num_receivers, found.over) == (10, "senders")


def of_classes(observation: Observation, classes: Tensor) -> tuple[Tensor, Tensor]:
    exchange = observation.exchanges["head.coupling"]
    return exchange.module.best_members(*exchange.inputs, torch.arange(len(classes)), classes)


@pytest.mark.parametrize("kind", ["three scales", "unshared, over senders"])
def test_witnesses_set_the_scores(kind: str, make: Make, some_images: MakeImages) -> None:
    model = make(kind).requires_grad_(False)
    observation = observe(model, some_images(model))
    fine, coarse = observation.exchanges["head.coupling"].inputs
    votes = torch.einsum("bkd,jkde->bjke", coarse, model.head.weight)
    asked = (4, 9)
    found, best = of_classes(observation, torch.tensor(asked))
    for b, c in enumerate(asked):
        for k in range(4):
            members = range(k * model.head.members, (k + 1) * model.head.members)
            weights = model.head.weight if model.head.fine_weight is None else model.head.fine_weight
            scores = {
                m: float((weights[c, k if model.head.fine_weight is None else m].T @ fine[b, m]) @ votes[b, c, k])
                for m in members
            }
            assert int(found[b, k]) == max(scores, key=scores.__getitem__)
            torch.testing.assert_close(best[b, k] * votes.shape[-1] ** 0.5, torch.tensor(max(scores.values())))
            torch.testing.assert_close(best[b, k], model.head.agreement(fine, votes)[b, c, k])


def test_the_first_map_follows_the_witnesses(make: Make, some_images: MakeImages) -> None:
    model = make("three scales")
    observation = observe(model, some_images(model))
    asked = torch.tensor([1, 1])
    weights = receiver_weights(observation, asked, 0, 16)
    torch.testing.assert_close(weights.sum(1), torch.ones(2))
    found = of_classes(observation, asked)[0]
    for b in range(2):
        shares = observation.trace["head.coupling"][b, 0, 1]
        expected = sum(shares[k] * observation.trace["middle.coupling"][b, 0, found[b, k]] for k in range(4))
        cells = coupling_maps(observation, asked)["middle.coupling"].cells[b]
        torch.testing.assert_close(cells.flatten(), expected / shares.sum())


def test_dynamic_maps_multiply_the_couplings(make: Make, some_images: MakeImages) -> None:
    model = make("dynamic")
    observation = observe(model, some_images(model))
    asked = torch.tensor([2, 5])
    head = observation.trace["head.coupling"][0, 0, 2, 4:20]
    expected = head @ observation.trace["scale_routings.1.coupling"][0, 0] / head.sum()
    found = coupling_maps(observation, asked)["scale_routings.1.coupling"]
    torch.testing.assert_close(found.cells[0].flatten(), expected)
    assert found.num_receivers == 16
