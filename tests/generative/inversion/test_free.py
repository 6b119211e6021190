"""Gaussian beliefs: loops, the tangent, the exact evidence, and what the limits of its parameters turn it into."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from directional_exact import log_c, slope_over_kappa
from inversion_by_loops import (
    Loops,
    free_bound,
    free_evidence,
    free_scores,
    free_update,
    random_problem,
    responsibilities,
    tangents,
)
from mereo.generative.bessel import log_vmf_normaliser, log_vmf_normaliser_and_slope
from mereo.generative.capsule_mixture import CapsuleMixture
from mereo.generative.inversion import Inversion, invert

D = torch.float64


def run(p: Loops, **options: Any) -> Inversion:
    """`invert` on the problem of the loops."""
    return invert(**p.arguments | options)


def priors(parents: int, e: int) -> tuple[Tensor, Tensor]:
    """Means and precision matrices."""
    half = torch.randn(parents, e, e, dtype=D)
    return torch.randn(parents, e, dtype=D), half @ half.mT + torch.eye(e, dtype=D)


def problems() -> dict[str, Loops]:
    plain = random_problem(0, 4, 3, 3, 2)
    undirected = random_problem(1, 4, 3, 2, 4)
    undirected.directions[1] = 0
    absent = random_problem(2, 4, 3, 3, 3, there=[True, False, True, True])
    absent.log_prior[:, 1] = -math.inf
    absent.log_prior = absent.log_prior.log_softmax(-1)
    own = random_problem(3, 4, 2, 2, 2)
    own.directions = torch.nn.functional.normalize(own.poses, dim=-1)
    grouped = random_problem(4, 5, 5, 2, 3, owner=[2, 0, 0, 2, 1])
    return {"plain": plain, "undirected": undirected, "absent": absent, "own": own, "grouped": grouped}


@pytest.mark.parametrize("sparsity", [0.0, 0.7])
@pytest.mark.parametrize("name", problems())
def test_sweeps_equal_loops(name: str, sparsity: float) -> None:
    p = problems()[name]
    e, sweeps = p.transforms.shape[-1], 3
    mean0, precision0 = priors(p.parents, e)
    given = {"prior": mean0, "prior_precision": precision0, "sparsity": sparsity}
    mean, covariance, width = mean0, precision0.inverse(), torch.ones(p.parents, dtype=D)
    start = torch.rand(p.sigma.shape, dtype=D) * (p.log_prior > -math.inf)
    start = start / start.sum(-1, keepdim=True)
    found = run(p, **given, sweeps=sweeps, start=start)
    again = None
    r = start * torch.tensor(p.there).unsqueeze(-1)
    for sweep in range(sweeps + 1):
        xi = tangents(p, mean, covariance)
        mean, covariance = free_update(p, r, xi, mean0, precision0, sparsity, width)
        width = ((mean.square().sum(-1)) + covariance.diagonal(dim1=-2, dim2=-1).sum(-1)).sqrt()
        if sweep == 0:
            again = run(p, **given, sweeps=sweeps, start_parents=(mean, covariance))
        xi = tangents(p, mean, covariance)
        r = responsibilities(p, free_scores(p, mean, covariance, xi))
        bound = free_bound(p, r, mean, covariance, xi, mean0, precision0, sparsity, width)
        assert found.trace[sweep].item() == pytest.approx(bound, rel=1e-10)
    assert found.elbo == found.trace[-1]
    torch.testing.assert_close(found.responsibilities, r)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.covariance, covariance)
    if not sparsity:
        # From these beliefs the same way is taken; with the sparse prior its width would start anew.
        assert again is not None
        torch.testing.assert_close(again.trace, found.trace)


def test_an_even_start_from_the_prior_is_the_default() -> None:
    p = problems()["absent"]
    even = (p.log_prior > -math.inf).to(D)
    given = run(p, start=even / even.sum(-1, keepdim=True), sweeps=4)
    torch.testing.assert_close(run(p, sweeps=4).trace, given.trace, rtol=0, atol=0)


@pytest.mark.parametrize("d", [1, 2, 3, 16, 100])
def test_tangents_bound_the_normaliser_and_touch_it(d: int) -> None:
    grid = torch.cat((torch.zeros(1, dtype=D), torch.logspace(-3, 3, 200, dtype=D)))
    x, xi = grid.unsqueeze(0), grid.unsqueeze(1)
    at, slope = log_vmf_normaliser_and_slope(d, xi)
    exact = log_vmf_normaliser(d, x)
    bound = at - slope / 2 * (x.square() - xi.square())
    assert (bound <= exact + 1e-11 * (1 + bound.abs())).all()
    torch.testing.assert_close(bound.diagonal(), exact[0], rtol=1e-12, atol=1e-12)
    apart = (x - xi).abs() > 0.2 * (0.1 + x + xi)
    assert (bound < exact)[apart].all()
    torch.testing.assert_close(at[50, 0].item(), log_c(d, grid[50].item()), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(slope[50, 0].item(), slope_over_kappa(d, grid[50].item()), rtol=1e-12, atol=0)


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_is_below_the_exact_evidence(seed: int) -> None:
    p = random_problem(seed, owner=[0, 0, 1], n=3) if seed % 2 else random_problem(seed)
    if seed == 4:
        p.directions[0] = 0
    mean0, precision0 = priors(p.parents, 2)
    exact, _ = free_evidence(p, mean0, precision0)
    found = run(p, prior=mean0, prior_precision=precision0, sweeps=20, starts=3)
    assert (found.trace <= exact).all() and (found.trace.diff() >= -1e-12 * abs(exact)).all()
    assert found.elbo > exact - 6


def test_one_parent_without_directions_has_the_exact_posterior() -> None:
    """With nothing to assign the bound is the evidence: a Gaussian, with the covariance of what is stacked."""
    p = random_problem(5, 4, 1, 3, 2, kappa=torch.zeros(4, 1, dtype=D))
    mean0, precision0 = priors(1, 2)
    stacked = p.transforms[:, 0].flatten(0, 1)
    noise = p.sigma.square().repeat_interleave(3).diag()
    joint = MultivariateNormal(stacked @ mean0[0], noise + stacked @ precision0[0].inverse() @ stacked.T)
    # Directions are uniform at kappa 0.
    exact = joint.log_prob(p.poses.flatten()) + 4 * log_c(3, 0.0)
    found = run(p, prior=mean0, prior_precision=precision0, sweeps=1)
    torch.testing.assert_close(found.elbo, exact)
    precision = precision0[0] + stacked.T @ noise.inverse() @ stacked
    torch.testing.assert_close(found.covariance[0], precision.inverse())


def test_certain_parents_give_the_responsibilities_of_the_mixture() -> None:
    p = random_problem(7, 5, 3, 3, 4)
    parents = torch.randn(3, 4, dtype=D)
    found = run(p, prior=parents, prior_precision=1e14, sweeps=1)
    predictions = torch.einsum("mnde,ne->mnd", p.transforms, parents)
    # The factor of a direction is as concentrated as the prediction is long.
    mixture = CapsuleMixture(predictions, p.sigma, p.kappa * predictions.norm(dim=-1), p.log_prior)
    torch.testing.assert_close(
        found.responsibilities, mixture.responsibilities(p.poses, p.directions), rtol=1e-6, atol=1e-8
    )


def test_without_kappa_it_is_expectation_maximisation_of_gaussians() -> None:
    p = random_problem(8, 6, 3, 2, 2, kappa=torch.zeros(6, 3, dtype=D))
    r = torch.full((6, 3), 1 / 3, dtype=D)
    for _ in range(4):
        means, covariances = [], []
        for j in range(3):
            precision, pull = torch.eye(2, dtype=D), torch.zeros(2, dtype=D)
            for i in range(6):
                T, inverse = p.transforms[i, j], r[i, j] / p.sigma[i, j] ** 2
                precision, pull = precision + inverse * T.T @ T, pull + inverse * T.T @ p.poses[i]
            covariances.append(precision.inverse())
            means.append(covariances[-1] @ pull)
        scores = torch.zeros(6, 3, dtype=D)
        for i, j in itertools.product(range(6), range(3)):
            T = p.transforms[i, j]
            distance = (p.poses[i] - T @ means[j]).square().sum() + (T @ covariances[j] @ T.T).trace()
            scores[i, j] = p.log_prior[i, j] - distance / (2 * p.sigma[i, j] ** 2) - 2 * p.sigma[i, j].log()
        r = scores.softmax(-1)
    found = run(p, sweeps=3)
    torch.testing.assert_close(found.responsibilities, r)
    torch.testing.assert_close(found.mean, torch.stack(means))


def test_without_sigma_it_is_expectation_maximisation_of_directions() -> None:
    p = random_problem(9, 5, 3, 3, 3, sigma=torch.full((5, 3), 1e9, dtype=D))
    start = torch.full((5, 3), 1 / 3, dtype=D)
    found = run(p, sweeps=1, start=start)
    mean, covariance = torch.zeros(3, 3, dtype=D), torch.eye(3, dtype=D).expand(3, 3, 3)
    r = start
    for _ in range(2):
        xi, means, covariances = tangents(p, mean, covariance), [], []
        for j in range(3):
            precision, pull = torch.eye(3, dtype=D), torch.zeros(3, dtype=D)
            for i in range(5):
                T, k = p.transforms[i, j], p.kappa[i, j]
                precision = precision + r[i, j] * k**2 * slope_over_kappa(3, xi[i, j].item()) * T.T @ T
                pull = pull + r[i, j] * k * T.T @ p.directions[i]
            covariances.append(precision.inverse())
            means.append(covariances[-1] @ pull)
        mean, covariance = torch.stack(means), torch.stack(covariances)
        xi = tangents(p, mean, covariance)
        agreement = torch.einsum("md,mnde,ne->mn", p.directions, p.transforms, mean)
        log_density = p.kappa * agreement + torch.tensor([[log_c(3, x.item()) for x in row] for row in xi], dtype=D)
        r = (p.log_prior + log_density).softmax(-1)
    torch.testing.assert_close(found.responsibilities, r, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.mean, mean, rtol=1e-8, atol=1e-8)


def test_shared_transforms_equal_expanded_ones() -> None:
    poses, transforms = torch.randn(2, 5, 3, dtype=D), torch.randn(4, 3, 2, dtype=D)
    for options in ({}, {"sparsity": 0.5}, {"owner": torch.tensor([0, 1, 1, 0])}):
        given: dict[str, Any] = {"sigma": 0.5, "kappa": 2.0, "sweeps": 3, **options}
        shared, dense = (invert(poses, t, **given) for t in (transforms, transforms.expand(5, 4, 3, 2)))
        for name in ("responsibilities", "mean", "covariance", "trace"):
            torch.testing.assert_close(getattr(shared, name), getattr(dense, name))


@pytest.mark.long
def test_sparsity_empties_parents() -> None:
    """A growing lambda shrinks the parents that are not needed to explain the children."""
    p = random_problem(11, 4, 2, 2, 2)
    lengths = [run(p, sweeps=200, sparsity=s).mean.norm(dim=-1).sum().item() for s in (0.0, 1.0, 10.0, 100.0)]
    assert lengths == sorted(lengths, reverse=True) and lengths[-1] < 0.1 * lengths[0]
