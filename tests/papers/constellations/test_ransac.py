"""RANSAC for constellations against loops and an exhaustive search, its presets, and refusals."""

import itertools

import pytest
import torch
from torch import Tensor

from mereo.errors import UsageError
from papers.common.constellations import make_constellations, make_templates, similarity_basis
from papers.common.partition_metrics import segmentation_accuracy
from papers.constellations.presets import CONSTELLATION_PRESETS, label_constellations
from papers.constellations.ransac import ransac

D = torch.float64


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def proposals_by_loops(template: Tensor, points: Tensor, there: list[int], tolerance: float) -> dict[frozenset, float]:
    """Cost of each set of points that the template fits, by the cheapest way."""
    basis, best = similarity_basis(template), {}
    for a, b in itertools.permutations(there, 2):
        pose = torch.linalg.solve(torch.cat((basis[0], basis[1])), torch.cat((points[a], points[b])))
        used, cost = [a, b], 0.0
        for n in range(2, len(template)):
            errors = {m: (points[m] - basis[n] @ pose).square().sum().item() for m in there if m not in used}
            nearest = min(errors, key=errors.__getitem__) if errors else None
            if nearest is None or errors[nearest] >= tolerance:
                break
            used.append(nearest)
            cost += errors[nearest]
        else:
            key = frozenset(used)
            best[key] = min(cost, best.get(key, float("inf")))
    return best


def cover_by_recursion(proposals: list[dict[frozenset, float]]) -> tuple[int, float]:
    """Most points that disjoint proposals explain, one an object at most, and the least cost of that."""
    if not proposals:
        return 0, 0.0
    best = (0, 0.0)

    def search(number: int, used: frozenset, cost: float) -> None:
        nonlocal best
        if number == len(proposals):
            if (len(used), -cost) > (best[0], -best[1]):
                best = (len(used), cost)
            return
        search(number + 1, used, cost)
        for points, more in proposals[number].items():
            if not points & used:
                search(number + 1, used | points, cost + more)

    search(0, frozenset(), 0.0)
    return best


@pytest.mark.parametrize("tolerance", [0.02, 0.1])
def test_equals_loops_and_an_exhaustive_search(tolerance: float) -> None:
    shapes = ("square", "triangle")
    templates = make_templates(shapes)
    data = make_constellations(12, seeded(), shapes=shapes, noise=0.2, clutter=1)
    result = ransac(templates, data.points, data.mask, tolerances=(tolerance,))
    explained = (result.labels != 2).sum(1)
    for image in range(12):
        there = data.mask[image].nonzero().squeeze(1).tolist()
        own = [templates.points[templates.owner == k] for k in range(2)]
        proposals = [proposals_by_loops(template, data.points[image], there, tolerance) for template in own]
        count, cost = cover_by_recursion(proposals)
        assert explained[image] == count and result.cost[image].item() == pytest.approx(cost, abs=1e-9)
        assert result.covered[image] == (count == len(there))
        for k in range(2):
            points = frozenset((result.labels[image] == k).nonzero().squeeze(1).tolist())
            assert result.present[image, k] == bool(points) and (not points or points in proposals[k])
    assert explained.unique().numel() > 2


def test_without_noise_it_is_exact_and_poses_give_the_points() -> None:
    templates, data = make_templates(), make_constellations(40, seeded())
    result = ransac(templates, data.points, data.mask)
    assert (segmentation_accuracy(result.labels, data.labels, data.mask) == 1).all() and result.covered.all()
    assert (result.cost < 1e-12).all()
    basis = similarity_basis(templates.points)
    places = (basis @ result.mean[:, templates.owner].unsqueeze(-1)).squeeze(-1)
    for image, k in result.present.nonzero().tolist():
        mine = data.points[image, result.labels[image] == k]
        distances = torch.cdist(places[image, templates.owner == k], mine)
        assert distances.min(1).values.max() < 1e-6


def test_a_larger_tolerance_follows_where_the_first_leaves_points() -> None:
    data = make_constellations(60, seeded(), noise=0.25)
    strict = ransac(make_templates(), data.points, data.mask, tolerances=(0.01,))
    both = ransac(make_templates(), data.points, data.mask, tolerances=(0.01, 1.0))
    assert not strict.covered.all() and both.covered.sum() > strict.covered.sum()
    assert torch.equal(both.labels[strict.covered], strict.labels[strict.covered])
    assert ((both.labels != 3).sum(1) >= (strict.labels != 3).sum(1)).all()


@pytest.mark.parametrize("size", [0.0, 1e150])
def test_coinciding_huge_and_absent_points_give_finite_results(size: float) -> None:
    points = torch.full((3, 5, 2), size, dtype=D)
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1], mask[2, 1:] = False, False
    result = ransac(make_templates(), points, mask)
    assert result.mean.isfinite().all() and (result.labels[1] == 3).all() and (result.labels[2] == 3).all()
    assert result.covered.tolist()[1:] == [True, False] and not result.present[1:].any()
    assert ransac(make_templates(), points[:0], mask[:0]).labels.shape == (0, 5)


@pytest.mark.parametrize("preset", CONSTELLATION_PRESETS)
def test_presets_divide_points(preset: str) -> None:
    data = make_constellations(20, seeded())
    labels = label_constellations(preset, data.points, data.mask, seeded(1))
    assert segmentation_accuracy(labels, data.labels, data.mask).mean() > 0.75
    if preset != "gcm_ransac":
        moved = data.points + 5
        centred = label_constellations(preset, moved, data.mask, seeded(1), prior_mean="points")
        assert segmentation_accuracy(centred, data.labels, data.mask).mean() > 0.75


def test_an_unknown_preset() -> None:
    with pytest.raises(UsageError, match="preset"):
        label_constellations("gcm", torch.zeros(1, 5, 2), torch.ones(1, 5, dtype=torch.bool), seeded())
