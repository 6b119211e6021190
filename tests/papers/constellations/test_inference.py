"""Inference from several starts: its results, the rules of annealing and starting anew, seeds, refusals."""

from typing import Any

import pytest
import torch

from mereo.errors import UsageError
from papers.common.constellations import Constellations, make_constellations, make_templates, similarity_basis
from papers.common.partition_metrics import segmentation_accuracy, variation_of_information
from papers.constellations.generative_capsule_model import GenerativeCapsuleModel
from papers.constellations.inference import ConstellationInference, infer_constellations

TEMPLATES = make_templates()


def model(**options: Any) -> GenerativeCapsuleModel:
    return GenerativeCapsuleModel(similarity_basis(TEMPLATES.points), TEMPLATES.owner, **options)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def infer(own: GenerativeCapsuleModel, data: Constellations, seed: int = 0, **options: Any) -> ConstellationInference:
    return infer_constellations(own, data.points, data.mask, seeded(seed), **options)


def accuracy(found: ConstellationInference, data: Constellations) -> float:
    return segmentation_accuracy(found.labels, data.labels, data.mask).mean().item()


@pytest.mark.long
def test_assigns_points_to_objects() -> None:
    data = make_constellations(100, seeded())
    exclusive, mixture = infer(model(), data), infer(model(assignment="mixture"), data, max_precision=None)
    assert accuracy(exclusive, data) > 0.92 and 0.7 < accuracy(mixture, data) < accuracy(exclusive, data)
    assert variation_of_information(exclusive.labels, data.labels, data.mask).median() == 0


def test_separates_clutter_from_a_square() -> None:
    templates = make_templates(("square",))
    own = GenerativeCapsuleModel(similarity_basis(templates.points), templates.owner, clutter=2, rounds=5)
    data = make_constellations(50, seeded(), shapes=("square",), clutter=2)
    found = infer(own, data, restarts=20)
    assert found.responsibilities.shape == (50, 6, 5)
    assert (found.labels == data.labels).all(1).double().mean() > 0.9


def test_precision_doubles_until_it_is_above_the_last() -> None:
    found = infer(model(), make_constellations(20, seeded()), precision=50, max_precision=1e4)
    assert found.finished.all() and (found.precision == 12800).all()
    assert (found.trace[:, -1] == found.bound).all()


def test_chains_that_run_out_of_updates_are_reported() -> None:
    found = infer(model(), make_constellations(20, seeded()), updates=5)
    assert not found.finished.any() and found.trace.shape == (20, 5)


def test_more_starts_find_a_larger_bound() -> None:
    own, data = model(assignment="mixture"), make_constellations(50, seeded(), noise=0.1)
    one, eight = (infer(own, data, max_precision=None, restarts=restarts).bound.mean() for restarts in (1, 8))
    assert eight > one + 0.5


def test_no_object_is_left_with_a_single_point() -> None:
    data = make_constellations(100, seeded(), noise=0.1)
    found = infer(model(), data)
    assert found.finished.float().mean() > 0.9
    assert not model().single_point(found.responsibilities[found.finished]).any()


def test_the_order_of_slots_does_not_matter_to_an_update_and_seeds_repeat() -> None:
    own, data = model(), make_constellations(10, seeded(), noise=0.1)
    first, again, other = (infer(own, data, seed=seed, max_precision=None) for seed in (0, 0, 1))
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    assert not torch.equal(first.responsibilities, other.responsibilities)
    order = torch.randperm(11)
    precision, r = torch.full((10,), 50.0, dtype=torch.float64), first.responsibilities
    plain = own.update(data.points, data.mask, r, precision)
    moved = own.update(data.points[:, order], data.mask[:, order], r[:, order], precision)
    torch.testing.assert_close(moved.responsibilities, plain.responsibilities[:, order])
    torch.testing.assert_close(moved.bound, plain.bound)


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="restarts is 0"):
        infer(model(), make_constellations(3, seeded()), restarts=0)
