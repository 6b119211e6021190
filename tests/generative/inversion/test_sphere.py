"""Beliefs about directions: loops, the exact evidence, moments, and what the limits of its parameters turn it into."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from directional_exact import ratio
from inversion_by_loops import (
    Loops,
    random_problem,
    responsibilities,
    resultants,
    sphere_bound,
    sphere_evidence,
    sphere_scores,
    sphere_update,
)
from mereo.generative.capsule_mixture import CapsuleMixture
from mereo.generative.inversion import Inversion, SphereParents, invert
from mereo.generative.von_mises_fisher import VonMisesFisher

D = torch.float64


def run(p: Loops, **options: Any) -> Inversion:
    """`invert` on the problem of the loops."""
    return invert(family="sphere", **p.arguments | options)


def problem(seed: int, *sizes: int, **changes: Any) -> Loops:
    return random_problem(seed, *sizes, orthogonal=True, **changes)


def problems() -> dict[str, Loops]:
    undirected = problem(1, 4, 3, 4, 4)
    undirected.directions[1] = 0
    absent = problem(2, 4, 3, 3, 3, there=[True, False, True, True])
    absent.log_prior[:, 1] = -math.inf
    absent.log_prior = absent.log_prior.log_softmax(-1)
    return {
        "plain": problem(0, 4, 3, 3, 3), "undirected": undirected, "absent": absent,
        "taller than wide": problem(3, 4, 3, 5, 2), "on two points": problem(4, 4, 3, 2, 1),
        "grouped": problem(5, 5, 5, 3, 3, owner=[2, 0, 0, 2, 1]),
    }  # fmt: skip


@pytest.mark.parametrize("name", problems())
def test_sweeps_equal_loops(name: str) -> None:
    p = problems()[name]
    natural0 = torch.randn(p.parents, p.transforms.shape[-1], dtype=D)
    start = torch.rand(p.sigma.shape, dtype=D) * (p.log_prior > -math.inf)
    start = start / start.sum(-1, keepdim=True)
    found, r = run(p, prior=natural0, sweeps=3, start=start), start * torch.tensor(p.there).unsqueeze(-1)
    for sweep in range(4):
        natural = sphere_update(p, r, natural0)
        r = responsibilities(p, sphere_scores(p, natural))
        bound = sphere_bound(p, r, natural, natural0)
        assert found.trace[sweep].item() == pytest.approx(bound, rel=1e-10)
    torch.testing.assert_close(found.responsibilities, r)
    torch.testing.assert_close(found.mean, resultants(natural))
    assert isinstance(found.parents, SphereParents)
    torch.testing.assert_close(found.parents.natural[0], natural)


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_is_below_the_exact_evidence(seed: int) -> None:
    p = problem(seed, 3, 3, owner=[0, 0, 1]) if seed % 2 else problem(seed)
    if seed == 4:
        p.directions[0] = 0
    natural0 = torch.randn(p.parents, 2, dtype=D)
    if seed == 2:
        natural0[0] = 0
    exact, _ = sphere_evidence(p, natural0)
    found = run(p, prior=natural0, sweeps=20, starts=3)
    assert (found.trace <= exact).all() and (found.trace.diff() >= -1e-12 * abs(exact)).all()
    assert found.elbo > exact - 6


def test_one_parent_has_the_exact_posterior() -> None:
    """With nothing to assign the bound is the evidence."""
    p = problem(6, 4, 1)
    natural0 = torch.randn(1, 2, dtype=D)
    exact, _ = sphere_evidence(p, natural0)
    assert run(p, prior=natural0, sweeps=1).elbo.item() == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("e", [1, 2, 3, 8])
@pytest.mark.parametrize("length", [0.0, 1e-9, 0.5, 20.0, 1e6])
def test_moments_are_those_of_von_mises_and_fisher(e: int, length: float) -> None:
    mean_direction = torch.nn.functional.normalize(torch.randn(1, 2, e, dtype=D), dim=-1)
    beliefs = SphereParents(length * mean_direction, torch.zeros(2, e, dtype=D))
    own = VonMisesFisher(mean_direction, length)
    torch.testing.assert_close(beliefs.mean, own.mean, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(beliefs.mean.norm(dim=-1), torch.full((1, 2), ratio(e, length), dtype=D))
    covariance = beliefs.covariance
    torch.testing.assert_close(covariance.diagonal(dim1=-2, dim2=-1), own.variance, rtol=1e-8, atol=1e-13)
    trace = covariance.diagonal(dim1=-2, dim2=-1).sum(-1)
    torch.testing.assert_close(trace, 1 - own.mean_resultant_length.square(), rtol=1e-8, atol=1e-12)
    single = SphereParents(beliefs.natural.float(), beliefs.prior.float()).covariance
    assert (torch.linalg.eigvalsh(single) >= -1e-7).all()


def test_covariance_by_samples() -> None:
    mean_direction = torch.nn.functional.normalize(torch.randn(3, dtype=D), dim=-1)
    x = VonMisesFisher(mean_direction, 4.0).sample((40_000,))
    found = SphereParents((4 * mean_direction).expand(1, 1, 3), torch.zeros(1, 3, dtype=D)).covariance[0, 0]
    centred = x - x.mean(0)
    products = centred.unsqueeze(-1) * centred.unsqueeze(-2)
    assert ((products.mean(0) - found).abs() <= 4 * products.std(0) / len(x) ** 0.5).all()


def test_certain_parents_give_the_responsibilities_of_the_mixture() -> None:
    p = problem(7, 5, 3, 3, 3)
    parents = torch.nn.functional.normalize(torch.randn(3, 3, dtype=D), dim=-1)
    found = run(p, prior=1e9 * parents, sweeps=1)
    mixture = CapsuleMixture(torch.einsum("mnde,ne->mnd", p.transforms, parents), p.sigma, p.kappa, p.log_prior)
    torch.testing.assert_close(
        found.responsibilities, mixture.responsibilities(p.poses, p.directions), rtol=1e-6, atol=1e-8
    )


def em_of_directions(p: Loops, seen: Tensor, sweeps: int) -> tuple[Tensor, Tensor]:
    """Expectation maximisation of a mixture of von Mises-Fisher, `seen` (m, n, d) the natural parameters."""
    r = torch.full(p.sigma.shape, 1 / p.sigma.shape[1], dtype=D)
    for _ in range(sweeps + 1):
        natural = torch.einsum("mn,mnde,mnd->ne", r, p.transforms, seen)
        mean = resultants(natural)
        r = (p.log_prior + torch.einsum("mnd,mnde,ne->mn", seen, p.transforms, mean)).softmax(-1)
    return r, mean


def test_without_sigma_it_is_expectation_maximisation_of_directions() -> None:
    """All pairs are equally concentrated, so that the normaliser cancels."""
    p = problem(8, 6, 3, 3, 3, sigma=torch.full((6, 3), 1e9, dtype=D), kappa=torch.full((6, 3), 4.0, dtype=D))
    r, mean = em_of_directions(p, 4.0 * p.directions.unsqueeze(1).expand(6, 3, 3), 3)
    found = run(p, sweeps=3)
    torch.testing.assert_close(found.responsibilities, r)
    torch.testing.assert_close(found.mean, mean)


def test_without_kappa_it_is_expectation_maximisation_of_gaussians() -> None:
    """On the sphere a Gaussian is linear in the parent too."""
    p = problem(9, 6, 3, 3, 3, sigma=torch.full((6, 3), 0.7, dtype=D), kappa=torch.zeros(6, 3, dtype=D))
    r, mean = em_of_directions(p, p.poses.unsqueeze(1).expand(6, 3, 3) / 0.49, 3)
    found = run(p, sweeps=3)
    torch.testing.assert_close(found.responsibilities, r)
    torch.testing.assert_close(found.mean, mean)


def test_shared_transforms_equal_expanded_ones() -> None:
    poses, transforms = torch.randn(2, 5, 3, dtype=D), torch.linalg.qr(torch.randn(4, 3, 3, dtype=D))[0]
    given: dict[str, Any] = {"sigma": 0.5, "kappa": 2.0, "sweeps": 3, "family": "sphere"}
    shared, dense = (invert(poses, t, **given) for t in (transforms, transforms.expand(5, 4, 3, 3)))
    for name in ("responsibilities", "mean", "covariance", "trace"):
        torch.testing.assert_close(getattr(shared, name), getattr(dense, name))


def test_turning_a_parent_with_its_transforms_changes_nothing_else() -> None:
    p, turn = problem(10, 4, 2, 3, 3), torch.linalg.qr(torch.randn(3, 3, dtype=D))[0]
    prior = torch.randn(2, 3, dtype=D)
    before = run(p, prior=prior, sweeps=5)
    p.transforms[:, 1] = p.transforms[:, 1] @ turn.T
    after = run(p, prior=torch.stack((prior[0], turn @ prior[1])), sweeps=5)
    torch.testing.assert_close(after.trace, before.trace)
    torch.testing.assert_close(after.mean, torch.stack((before.mean[0], turn @ before.mean[1])))
