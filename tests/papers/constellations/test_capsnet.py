"""The network for constellations: loops, the exact evidence, starts, clutter, learning, refusals."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mereo.errors import UsageError
from papers.common.constellations import Constellations, make_constellations, make_templates
from papers.common.partition_metrics import adjusted_rand_index, segmentation_accuracy
from papers.constellations.capsnet import CLUTTER_SIGMA, ConstellationCapsNet, Explanation
from papers.constellations.learning import fit_sigma, fit_templates, learn_constellations

D = torch.float64
TEMPLATES = make_templates()
NETWORK = ConstellationCapsNet(*TEMPLATES)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def data(images: int = 60, seed: int = 0, **options: Any) -> Constellations:
    return make_constellations(images, seeded(seed), **options)


def settled(network: ConstellationCapsNet, drawn: Constellations, sweeps: int = 20, seed: int = 0) -> Explanation:
    start = network.random_start(drawn.mask, seeded(seed))
    return network.settle(drawn.points, drawn.mask, start, sigma=network.sigma, sweeps=sweeps)


def bound(network: ConstellationCapsNet, points: Tensor, found: Explanation, image: int, there: Tensor) -> float:
    """The evidence lower bound of one image for given beliefs, as it is defined."""
    r, places = found.responsibilities[image][there], points[image][there]
    total, columns = 0.0, r.shape[1]
    for k in range(network.objects):
        belief = torch.distributions.MultivariateNormal(found.mean[image, k], found.covariance[image, k])
        prior = torch.distributions.MultivariateNormal(torch.zeros(4, dtype=D), torch.eye(4, dtype=D))
        total -= torch.distributions.kl_divergence(belief, prior).item()
    for m, n in itertools.product(range(len(r)), range(columns)):
        if n < len(network.owner):
            F, k, sigma = network.basis[n], network.owner[n], network.sigma
            error = (places[m] - F @ found.mean[image, k]).square().sum()
            error = error + (F @ found.covariance[image, k] @ F.T).trace()
        else:
            sigma, error = CLUTTER_SIGMA, places[m].square().sum()
        density = -math.log(2 * math.pi * sigma**2) - error / (2 * sigma**2)
        total += (torch.xlogy(r[m, n], 1 / columns) + r[m, n] * density - torch.xlogy(r[m, n], r[m, n])).item()
    return total


@pytest.mark.parametrize("clutter", [False, True])
def test_the_bound_is_the_bound(clutter: bool) -> None:
    network = replace(NETWORK, clutter=clutter)
    drawn = data(4, noise=0.1, clutter=2 * clutter)
    found = settled(network, drawn, sweeps=5)
    assert found.responsibilities.shape == (4, 11 + 2 * clutter, 11 + clutter) and found.mean.shape == (4, 3, 4)
    assert (found.responsibilities[~drawn.mask] == 0).all()
    for image, there in enumerate(drawn.mask):
        assert found.elbo[image].item() == pytest.approx(bound(network, drawn.points, found, image, there))


def test_the_bound_is_below_the_exact_evidence() -> None:
    """Of one triangle, by summing over the parts that its three points may be, with poses integrated out."""
    network = ConstellationCapsNet(*make_templates(("triangle",)))
    points = network.basis @ torch.tensor([0.5, -0.25, 0.3, 0.1], dtype=D)
    evidence = []
    for parts in itertools.product(range(3), repeat=3):
        stacked = network.basis[list(parts)].flatten(0, 1)
        joint = torch.distributions.MultivariateNormal(
            torch.zeros(6, dtype=D), network.sigma**2 * torch.eye(6, dtype=D) + stacked @ stacked.T
        )
        evidence.append(joint.log_prob(points.flatten()) - 3 * math.log(3))
    exact = torch.stack(evidence).logsumexp(0)
    found = network.explain(points.unsqueeze(0), torch.ones(1, 3) > 0, seeded())
    assert exact - 3 < found.elbo[0] < exact


@pytest.mark.long
def test_assigns_points_to_objects_and_more_starts_do_better() -> None:
    drawn, network = data(50), replace(NETWORK, sigma=0.05)
    one, eight = (network.explain(drawn.points, drawn.mask, seeded(), starts=starts) for starts in (1, 8))
    assert (eight.elbo >= one.elbo).all()
    index = [adjusted_rand_index(network.labels(e), drawn.labels, drawn.mask).mean() for e in (one, eight)]
    assert index[1] > 0.8 and index[1] > index[0] + 0.1
    sharp = network.settle(drawn.points, drawn.mask, network.random_start(drawn.mask, seeded()), sigma=0.05, sweeps=40)
    assert one.elbo.mean() > sharp.elbo.mean() + 1, "settling broadly first is what finds anything"


def test_clutter_has_a_label_of_its_own() -> None:
    drawn, network = data(40, clutter=2), replace(NETWORK, sigma=0.05, clutter=True)
    labels = network.labels(network.explain(drawn.points, drawn.mask, seeded()))
    assert labels.max() == 3
    least = segmentation_accuracy(torch.full_like(labels, 3), drawn.labels, drawn.mask).mean()
    assert segmentation_accuracy(labels, drawn.labels, drawn.mask).mean() > least + 0.1


def fitted_bound(network: ConstellationCapsNet, drawn: Constellations, found: Explanation) -> float:
    return sum(bound(network, drawn.points, found, image, there) for image, there in enumerate(drawn.mask))


@pytest.mark.parametrize("clutter", [False, True])
def test_templates_and_sigma_are_where_the_bound_is_the_largest(clutter: bool) -> None:
    torch.manual_seed(0)
    drawn = data(4, noise=0.1, clutter=2 * clutter)
    network = replace(NETWORK, templates=torch.randn(11, 2, dtype=D), clutter=clutter)
    found = settled(network, drawn, sweeps=3)
    best = fit_sigma(fit_templates(network, drawn.points, found), drawn.points, found)
    top = fitted_bound(best, drawn, found)
    assert top > fitted_bound(network, drawn, found) + 1
    for nearby in (
        replace(best, sigma=0.97 * best.sigma),
        replace(best, sigma=1.03 * best.sigma),
        *(replace(best, templates=best.templates + 0.02 * torch.randn(11, 2, dtype=D)) for _ in range(5)),
    ):
        assert fitted_bound(nearby, drawn, found) < top


def test_parts_that_explain_nothing_stay() -> None:
    drawn = data(4)
    found = settled(NETWORK, drawn)
    found = found._replace(responsibilities=found.responsibilities * (torch.arange(11) != 5))
    fitted = fit_templates(NETWORK, drawn.points, found)
    assert torch.equal(fitted.templates[5], NETWORK.templates[5])
    assert not torch.isclose(fitted.templates[4], NETWORK.templates[4]).all()


def test_learns_a_square_from_points_without_labels() -> None:
    drawn = data(40, shapes=("square",))
    learned = learn_constellations(drawn.points, drawn.mask, seeded(), objects=1, candidates=2, epochs=16)
    assert len(learned.elbo) == 16 and (learned.elbo.diff() > -1e-9).all()
    own = learned.network.templates - learned.network.templates.mean(0)
    distances = torch.cdist(own, own) / own.norm(dim=-1).mean()
    sides, diagonals = distances.sort(-1).values[:, 1:3], distances.amax(-1)
    torch.testing.assert_close(sides, torch.full_like(sides, 2**0.5), rtol=0, atol=0.1)
    torch.testing.assert_close(diagonals, torch.full_like(diagonals, 2.0), rtol=0, atol=0.1)
    assert learned.network.sigma < 0.1


@pytest.mark.long
def test_learns_which_objects_there_are() -> None:
    drawn, lines = data(120), []
    learned = learn_constellations(drawn.points, drawn.mask, seeded(), candidates=4, epochs=20, say=lines.append)
    assert (learned.elbo.diff() > -1e-9).all() and len(lines) == 6
    other = data(60, seed=1)
    found = learned.network.explain(other.points, other.mask, seeded(), starts=5)
    assert adjusted_rand_index(learned.network.labels(found), other.labels, other.mask).mean() > 0.7


def test_learning_repeats_with_its_seed() -> None:
    drawn = data(20)
    options: dict[str, Any] = {"candidates": 2, "epochs": 4}
    first, again, other = (
        learn_constellations(drawn.points, drawn.mask, seeded(seed), **options).network.templates for seed in (0, 0, 1)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_wrong_arguments() -> None:
    drawn = data(4)
    with pytest.raises(UsageError, match="sigma is 0"):
        replace(NETWORK, sigma=0)
    with pytest.raises(UsageError, match="starts is 0"):
        NETWORK.explain(drawn.points, drawn.mask, seeded(), starts=0)
    with pytest.raises(UsageError, match="parts is 12"):
        learn_constellations(drawn.points, drawn.mask, seeded(), parts=12)
    with pytest.raises(UsageError, match="epochs is 3"):
        learn_constellations(drawn.points, drawn.mask, seeded(), epochs=3)
    with pytest.raises(UsageError, match="candidates is 0"):
        learn_constellations(drawn.points, drawn.mask, seeded(), candidates=0)
