"""Three children and two parents in the plane: numbers computed by hand, and the exact evidence by enumeration."""

from typing import Any

import pytest
import torch
from torch import Tensor

from inversion_by_loops import (
    Loops,
    free_bound,
    free_evidence,
    free_scores,
    free_update,
    responsibilities,
    sphere_bound,
    sphere_evidence,
    sphere_scores,
    sphere_update,
    tangents,
)
from mereo.generative.inversion import invert

D = torch.float64
POSES = torch.tensor([[1, 0.2], [-0.1, 0.9], [0.8, -0.6]], dtype=D)
EYE, QUARTER = torch.eye(2, dtype=D), torch.tensor([[0.0, -1], [1, 0]], dtype=D)
TRANSFORMS = torch.stack([torch.stack(row) for row in ((EYE, EYE), (QUARTER, EYE), (EYE, QUARTER))])
FIXED: dict[str, Any] = {"sigma": 0.5, "kappa": 2.0}
FREE_START = torch.tensor([[0.9, 0.1], [-0.4, -0.9]], dtype=D), 0.1 * torch.stack((EYE, EYE))
FREE_PRIOR = torch.zeros(2, 2, dtype=D), torch.stack((EYE, EYE))
SPHERE_PRIOR = torch.tensor([[0.5, 0], [0, -0.5]], dtype=D)


def example() -> Loops:
    pairs = torch.ones(3, 2, dtype=D)
    directions = torch.nn.functional.normalize(POSES, dim=-1)
    return Loops(POSES, TRANSFORMS, pairs / 2, 2 * pairs, (pairs / 2).log(), [0, 1], directions, [True] * 3)


def free(**options: Any) -> Any:
    return invert(POSES, TRANSFORMS, **{**FIXED, "start_parents": FREE_START, **options})


def sphere(**options: Any) -> Any:
    return invert(POSES, TRANSFORMS, **{**FIXED, "family": "sphere", "prior": SPHERE_PRIOR, **options})


def close(got: Tensor, expected: Any, digits: float = 1e-6) -> None:
    torch.testing.assert_close(got, torch.tensor(expected, dtype=D), rtol=0, atol=digits)


def test_free_sweeps() -> None:
    """The bound after r, after q with the old tangents, and after new ones; in the loops and in `invert`."""
    p, (mean, covariance) = example(), FREE_START
    found = free(sweeps=6)
    reported = {1: (-10.847562, -10.477013, -10.475325), 5: (None, None, -10.405865)}
    for sweep in range(1, 7):
        xi = tangents(p, mean, covariance)
        r = responsibilities(p, free_scores(p, mean, covariance, xi))
        bounds = [free_bound(p, r, mean, covariance, xi, *FREE_PRIOR)]
        assert found.trace[sweep - 1].item() == pytest.approx(bounds[0], abs=1e-10)
        mean, covariance = free_update(p, r, xi, *FREE_PRIOR)
        bounds += [free_bound(p, r, mean, covariance, x, *FREE_PRIOR) for x in (xi, tangents(p, mean, covariance))]
        for bound, number in zip(bounds, reported.get(sweep, (None,) * 3), strict=True):
            assert number is None or bound == pytest.approx(number, abs=1e-6)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.covariance, covariance)


def test_free_end() -> None:
    found = free(sweeps=200)
    assert found.elbo.item() == pytest.approx(-10.020062, abs=1e-6)
    assert (found.trace.diff() >= -1e-12).all()
    close(found.mean[0], [0.953463, -0.104171])
    close(found.mean[1], [0, 0], 1e-3)
    close(found.covariance[0], [[0.058345, 0], [0, 0.058345]])
    close(found.covariance[1], [[0.993201, 0], [0, 0.993201]])
    close(found.responsibilities[:, 0], [0.9997, 0.9996, 0.9994], 5e-5)
    exact, posterior = free_evidence(example(), *FREE_PRIOR)
    assert exact == pytest.approx(-9.280157, abs=1e-6)
    close(posterior[:, 0], [0.861646, 0.884283, 0.739388])
    assert (found.trace < exact).all()
    # The mean field is surer of its assignment than it has reason to be.
    assert (found.responsibilities[:, 0] > posterior[:, 0]).all()


@pytest.mark.long
def test_free_from_twenty_random_starts() -> None:
    means = torch.randn(20, 2, 2, dtype=D)
    covariances = FREE_START[1].expand(20, 2, 2, 2)
    found = invert(POSES.expand(20, 3, 2), TRANSFORMS, **FIXED, start_parents=(means, covariances), sweeps=600)
    close(found.elbo, [-10.020062] * 20)


def test_free_parameters_at_the_end() -> None:
    end = free(sweeps=200)
    learned = free(start_parents=(end.mean, end.covariance), sweeps=1, learn=("sigma", "kappa"))
    assert learned.kappa.item() == pytest.approx(4.265107, abs=2e-5)
    assert learned.sigma.item() ** 2 == pytest.approx(0.127043, abs=1e-6)


@pytest.mark.long
def test_free_with_all_parameters_learned_in_every_sweep() -> None:
    """The parse tree becomes one of single parents."""
    found = free(sweeps=60, learn=("sigma", "kappa", "log_prior"), log_prior=torch.zeros(2, dtype=D), largest_kappa=1e4)
    assert (found.trace.diff() >= -1e-9).all()
    assert found.elbo.item() == pytest.approx(-1.002899, abs=2e-5)
    close(found.responsibilities[:, 0], [1, 1, 0], 1e-5)
    close(found.log_prior.exp().flatten(), [2 / 3, 1 / 3], 1e-5)
    close(found.mean.norm(dim=-1), [0.9617, 0.9999], 5e-5)
    assert found.kappa.item() == pytest.approx(321, abs=0.6)
    assert found.sigma.item() ** 2 == pytest.approx(0.0026, abs=5e-5)


def test_free_with_the_sparse_prior() -> None:
    found = free(sweeps=200, sparsity=1.0)
    assert (found.trace.diff() >= -1e-12).all()
    close(found.responsibilities[:, 0], [0.9948, 0.9930, 0.9906], 5e-5)
    close(found.mean.norm(dim=-1), [0.8965, 0.0035], 5e-5)


def test_sphere_sweeps() -> None:
    p, r = example(), torch.full((3, 2), 0.5, dtype=D)
    found = sphere(sweeps=4)
    for sweep, number in enumerate((-9.042359, -8.594278, None, None, None)):
        natural = sphere_update(p, r, SPHERE_PRIOR)
        r = responsibilities(p, sphere_scores(p, natural))
        bound = sphere_bound(p, r, natural, SPHERE_PRIOR)
        assert found.trace[sweep].item() == pytest.approx(bound, abs=1e-10)
        assert number is None or bound == pytest.approx(number, abs=1e-6)
    torch.testing.assert_close(found.parents.natural[0], natural)
    torch.testing.assert_close(found.responsibilities, r)


def test_sphere_end() -> None:
    found = sphere(sweeps=200)
    assert found.elbo.item() == pytest.approx(-8.553600, abs=1e-6)
    assert (found.trace.diff() >= -1e-12).all()
    close(found.parents.natural[0], [[16.649835, -1.651181], [-0.128711, -0.677647]])
    close(found.responsibilities[:, 0], [0.998311, 0.999162, 0.961595])
    exact, posterior = sphere_evidence(example(), SPHERE_PRIOR)
    assert exact == pytest.approx(-7.717117, abs=1e-6)
    close(posterior[:, 0], [0.875981, 0.926025, 0.608314])
    assert (found.trace < exact).all()


@pytest.mark.long
def test_sphere_from_thirty_random_starts() -> None:
    shares = torch.rand(30, 3, 2, dtype=D)
    batch = invert(
        POSES.expand(30, 3, 2), TRANSFORMS, **FIXED, family="sphere", prior=SPHERE_PRIOR, sweeps=100,
        start=shares / shares.sum(-1, keepdim=True),
    )  # fmt: skip
    low, high = -8.553600, -8.396021
    at_low, at_high = ((batch.elbo - end).abs() < 1e-6 for end in (low, high))
    assert (at_low | at_high).all() and at_low.any() and at_high.any()
    close(batch.responsibilities[at_high][0, 2], [0.2932, 0.7068], 5e-5)
    best = sphere(sweeps=100, starts=8)
    assert best.elbo.item() == pytest.approx(high, abs=1e-6)
    assert best.trace[-1] == best.elbo and (best.trace.diff() >= -1e-12).all()
    close(best.responsibilities[2], [0.2932, 0.7068], 5e-5)
