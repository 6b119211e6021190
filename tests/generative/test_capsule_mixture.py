"""The capsule mixture: integrals, loops, samples, what is absent or has no direction, refusals."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from directional_exact import log_c, ratio
from mereo.errors import UsageError
from mereo.generative.capsule_mixture import MIXINGS, CapsuleMixture, unit

D = torch.float64
COUNT = 40_000


def plane() -> tuple[Tensor, Tensor]:
    """Points of the plane out to 3.5, (N, 1, 2), and weights with which sums become integrals.

    They lie on rings, so that the origin does not disturb what depends on directions.
    """
    radii, weights = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(120))
    radii, weights = 1.75 * (radii + 1), 1.75 * weights
    turn = torch.arange(240, dtype=D) * (2 * math.pi / 240)
    points = radii[:, None, None] * torch.stack((turn.cos(), turn.sin()), -1)
    return points.reshape(-1, 1, 2), (weights * radii * (2 * math.pi / 240)).repeat_interleave(240)


def opposite(mixing: Any) -> CapsuleMixture:
    return CapsuleMixture(torch.tensor([[[1.0, 0], [-1, 0]]], dtype=D), 0.3, 5.0, mixing=mixing)


def drawn(m: int = 3, n: int = 4, d: int = 3, mixing: Any = "log") -> tuple[CapsuleMixture, Tensor]:
    """A mixture with parameters of its own for every pair, parent 1 absent for child 0; and poses."""
    prior = torch.randn(m, n, dtype=D)
    prior[0, 1] = -torch.inf
    sigma, kappa = 0.3 + torch.rand(m, n, dtype=D), 4 * torch.rand(m, n, dtype=D)
    mixture = CapsuleMixture(torch.randn(m, n, d, dtype=D), sigma, kappa, prior, mixing=mixing)
    return mixture, torch.randn(m, d, dtype=D)


def by_loops(mixture: CapsuleMixture, pose: Tensor, direction: Tensor, i: int) -> tuple[list[float], list[float]]:
    """pi_i and pi_ij N(V_i; U_ij), as the equations are written."""
    d, weights, terms = mixture.dimension, [], []
    for j in range(mixture.predictions.shape[-2]):
        u, kappa = mixture.predictions[i, j], mixture.kappa[i, j].item()
        rho = mixture.log_prior[i, j].exp().item()
        if u.norm() < 1e-6 or not direction.any():
            log_density = log_c(d, 0.0)
        else:
            log_density = log_c(d, kappa) + kappa * (direction @ u / u.norm()).item()
        if mixture.mixing == "constant":
            weights.append(rho)
        elif mixture.mixing == "log":
            weights.append(rho * math.exp(log_density))
        else:
            weights.append(math.exp(math.exp(log_density)) if rho else 0.0)
    pi = [w / sum(weights) for w in weights]
    for j, p in enumerate(pi):
        variance = mixture.sigma[i, j].item() ** 2
        distance = (pose - mixture.predictions[i, j]).square().sum().item()
        terms.append(p * math.exp(-distance / (2 * variance)) / (2 * math.pi * variance) ** (d / 2))
    return pi, terms


@pytest.mark.parametrize(("mixing", "whole"), [("literal", 1.340539), ("log", 1.998678), ("constant", 1.000000)])
def test_a_pose_that_is_its_own_direction_is_not_normalised(mixing: Any, whole: float) -> None:
    points, weights = plane()
    mixture = opposite(mixing)
    assert (weights @ mixture.log_prob(points).exp().squeeze(-1)).item() == pytest.approx(whole, abs=1e-6)
    assert mixture.normalised(directions_given=False) == (mixing == "constant")


@pytest.mark.parametrize("mixing", MIXINGS)
def test_a_direction_that_is_given_makes_a_density(mixing: Any) -> None:
    points, weights = plane()
    mixture = opposite(mixing)
    for turn in (0.0, 0.7, math.pi / 2):
        direction = torch.tensor([[math.cos(turn), math.sin(turn)]], dtype=D)
        density = mixture.log_prob(points, direction).exp().squeeze(-1)
        assert (weights @ density).item() == pytest.approx(1, abs=1e-8)
        torch.testing.assert_close((weights * density) @ points[:, 0], mixture.mean(direction)[0], atol=1e-8, rtol=0)
    assert mixture.normalised(directions_given=True)


@pytest.mark.parametrize("mixing", MIXINGS)
def test_equals_loops(mixing: Any) -> None:
    mixture, poses = drawn(mixing=mixing)
    mixture.predictions[2, 0] = 0
    mixture = CapsuleMixture(mixture.predictions, mixture.sigma, mixture.kappa, mixture.log_prior, mixing=mixing)
    poses[1] = 0
    given = torch.nn.functional.normalize(torch.randn(3, 3, dtype=D), dim=-1)
    own = torch.nn.functional.normalize(poses, dim=-1)
    for directions, log_prob, responsibilities in (
        (own, mixture.log_prob(poses), mixture.responsibilities(poses)),
        (given, mixture.log_prob(poses, given), mixture.responsibilities(poses, given)),
    ):
        for i in range(3):
            pi, terms = by_loops(mixture, poses[i], directions[i], i)
            torch.testing.assert_close(mixture.log_mixing(directions)[i].exp(), torch.tensor(pi, dtype=D))
            assert log_prob[i].item() == pytest.approx(math.log(sum(terms)), rel=1e-10)
            shares = torch.tensor([t / sum(terms) for t in terms], dtype=D)
            torch.testing.assert_close(responsibilities[i], shares)
            mean = sum(p * mixture.predictions[i, j] for j, p in enumerate(pi))
            torch.testing.assert_close(mixture.mean(directions)[i], mean)


def test_the_mean_is_one_step_of_top_down_attention() -> None:
    """Equation 6 on directions, with beta = kappa."""
    predictions = torch.nn.functional.normalize(torch.randn(2, 5, 4, 3, dtype=D), dim=-1)
    directions = torch.nn.functional.normalize(torch.randn(2, 5, 3, dtype=D), dim=-1)
    weights = (6 * torch.einsum("bmnd,bmd->bmn", predictions, directions)).softmax(-1)
    mixture = CapsuleMixture(predictions, 1.0, 6.0)
    torch.testing.assert_close(mixture.log_mixing(directions).exp(), weights)
    torch.testing.assert_close(mixture.mean(directions), torch.einsum("bmn,bmnd->bmd", weights, predictions))


def test_batches_equal_their_elements() -> None:
    predictions, poses = torch.randn(2, 5, 3, 4, 3, dtype=D), torch.randn(5, 3, 3, dtype=D)
    sigma = 0.5 + torch.rand(3, 1, dtype=D)
    mixture = CapsuleMixture(predictions, sigma, 2.0)
    together = mixture.log_prob(poses)
    assert together.shape == (2, 5, 3)
    for a, b in itertools.product(range(2), range(5)):
        alone = CapsuleMixture(predictions[a, b], sigma, 2.0)
        torch.testing.assert_close(together[a, b], alone.log_prob(poses[b]))
        torch.testing.assert_close(mixture.responsibilities(poses)[a, b], alone.responsibilities(poses[b]))


@pytest.mark.parametrize("mixing", MIXINGS)
def test_absent_parents_and_children(mixing: Any) -> None:
    mixture, poses = drawn(mixing=mixing)
    prior = torch.tensor([0.0, -math.inf, 0, 0], dtype=D)
    absent = CapsuleMixture(mixture.predictions, mixture.sigma, mixture.kappa, prior, mixing=mixing)
    keep = [0, 2, 3]
    left = CapsuleMixture(mixture.predictions[:, keep], mixture.sigma[:, keep], mixture.kappa[:, keep], mixing=mixing)
    torch.testing.assert_close(absent.log_prob(poses), left.log_prob(poses))
    assert (absent.responsibilities(poses)[:, 1] == 0).all()
    torch.testing.assert_close(absent.responsibilities(poses)[:, keep], left.responsibilities(poses))
    mask = torch.tensor([True, False, True])
    masked = mixture.log_prob(poses, mask=mask)
    assert masked[1] == 0 and torch.equal(masked[mask], mixture.log_prob(poses)[mask])
    assert (mixture.log_prob(poses, mask=torch.zeros(3, dtype=torch.bool)) == 0).all()


def test_without_a_direction_the_prior_decides() -> None:
    mixture, poses = drawn()
    torch.testing.assert_close(mixture.log_mixing(torch.zeros(3, 3, dtype=D)), mixture.log_prior)
    torch.testing.assert_close(mixture.log_prob(poses * 1e-9), mixture.log_prob(poses * 1e-9, torch.zeros(3, 3).to(D)))
    shapeless = CapsuleMixture(torch.zeros(3, 4, 3, dtype=D), mixture.sigma, 50.0, mixture.log_prior)
    torch.testing.assert_close(shapeless.log_mixing(unit(poses)[0]), mixture.log_prior)


def test_directions() -> None:
    x = torch.tensor([[3.0, 4], [0, 0], [1e-7, 0], [3e30, 4e30], [0, -1e-5]])
    directions, real = unit(x)
    expected = torch.tensor([[0.6, 0.8], [0, 0], [0, 0], [0.6, 0.8], [0, -1]])
    torch.testing.assert_close(directions, expected)
    assert real.tolist() == [True, False, False, True, True]


@pytest.mark.parametrize("mixing", MIXINGS)
def test_gradients(mixing: Any) -> None:
    mixture, poses = drawn(2, 3, 2, mixing)
    given = [mixture.predictions, mixture.sigma, mixture.kappa, mixture.log_prior.clone(), poses]
    given[3][0, 1] = -0.3
    leaves = [x.detach().clone().requires_grad_() for x in given]

    def log_prob(u: Tensor, sigma: Tensor, kappa: Tensor, prior: Tensor, poses: Tensor) -> Tensor:
        return CapsuleMixture(u, sigma, kappa, prior, mixing=mixing).log_prob(poses)

    assert torch.autograd.gradcheck(log_prob, leaves)


@pytest.mark.parametrize("mixing", MIXINGS)
def test_gradients_are_finite_where_something_is_absent(mixing: Any) -> None:
    mixture, poses = drawn(mixing=mixing)
    mixture.predictions[2, 0], poses[1] = 0, 0
    leaves = [x.detach().clone().requires_grad_() for x in (mixture.predictions, mixture.log_prior, poses)]
    again = CapsuleMixture(leaves[0], mixture.sigma, mixture.kappa, leaves[1], mixing=mixing)
    (again.log_prob(leaves[2]).sum() + again.mean(unit(leaves[2])[0]).sum()).backward()
    assert (leaves[1].grad is None) == (mixing == "literal")  # which asks the prior only who is there
    assert all(x.grad.isfinite().all() for x in leaves if x.grad is not None) and leaves[0].grad is not None


def shares_within(parents: Tensor, pi: Tensor) -> None:
    """How often each parent was drawn is within four standard errors of its chance."""
    found = torch.nn.functional.one_hot(parents, pi.shape[-1]).to(D).mean(0)
    assert ((found - pi).abs() <= 4 * (pi * (1 - pi) / len(parents)).sqrt()).all()


@pytest.mark.parametrize("mixing", MIXINGS)
def test_samples_for_given_directions(mixing: Any) -> None:
    mixture, poses = drawn(mixing=mixing)
    directions = unit(poses)[0]
    poses, given, parents = mixture.sample(directions.expand(COUNT, 3, 3))
    assert torch.equal(given, directions.expand(COUNT, 3, 3))
    assert poses.shape == (COUNT, 3, 3) and parents.shape == (COUNT, 3) and parents.dtype == torch.int64
    pi = mixture.log_mixing(directions).exp()
    assert not (parents[:, 0] == 1).any()
    for i in range(3):
        shares_within(parents[:, i], pi[i])
        for j in range(4):
            error = poses[parents[:, i] == j, i] - mixture.predictions[i, j]
            if len(error) > 500:
                sigma = mixture.sigma[i, j]
                assert (error.mean(0).abs() <= 4 * sigma / len(error) ** 0.5).all()
                assert ((error.var(0) / sigma**2 - 1).abs() <= 4 * (2 / len(error)) ** 0.5).all()
    assert ((poses.mean(0) - mixture.mean(directions)).abs() <= 4 * poses.std(0) / COUNT**0.5).all()


def test_samples_from_the_top() -> None:
    mixture, _ = drawn()
    predictions = mixture.predictions.clone()
    predictions[2, 0] = 0
    mixture = CapsuleMixture(predictions.expand(COUNT, 3, 4, 3), mixture.sigma, mixture.kappa, mixture.log_prior)
    poses, directions, parents = mixture.sample()
    torch.testing.assert_close(directions.norm(dim=-1), torch.ones(COUNT, 3, dtype=D))
    assert poses.shape == directions.shape and not (parents[:, 0] == 1).any()
    for i in range(3):
        shares_within(parents[:, i], mixture.log_prior[0, i].exp())
        for j in range(4):
            chosen = directions[parents[:, i] == j, i]
            if len(chosen) < 500:
                continue
            u, kappa = predictions[i, j], mixture.kappa[0, i, j].item()
            mean = ratio(3, kappa) * u / u.norm() if u.any() else torch.zeros(3, dtype=D)
            assert ((chosen.mean(0) - mean).abs() <= 4.5 * chosen.std(0) / len(chosen) ** 0.5).all()


def test_pose_and_direction_are_independent_given_the_parent() -> None:
    mixture = CapsuleMixture(torch.tensor([1.0, 0], dtype=D).expand(COUNT, 1, 1, 2), 0.5, 2.0)
    poses, directions, _ = mixture.sample()
    error = poses[:, 0] - torch.tensor([1.0, 0], dtype=D)
    turned = directions[:, 0] - directions[:, 0].mean(0)
    product = error[:, :, None] * turned[:, None, :]
    assert (product.mean(0).abs() <= 4 * product.std(0) / COUNT**0.5).all()


def test_the_literal_form_stands_every_concentration() -> None:
    mixture = CapsuleMixture(torch.eye(3, dtype=D).expand(1, 3, 3), 0.5, 1e6, mixing="literal")
    pi = mixture.log_mixing(torch.tensor([[1.0, 0, 0]], dtype=D)).exp()
    torch.testing.assert_close(pi, torch.tensor([[1.0, 0, 0]], dtype=D))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0.0, 1.0, 1e4, 1e30])
def test_zero_and_huge(size: float, dtype: torch.dtype) -> None:
    size = min(size, torch.finfo(dtype).max / 100)
    mixture = CapsuleMixture((size * torch.randn(2, 3, 4)).to(dtype), 1e-3, 10.0)
    poses = (size * torch.randn(2, 4)).to(dtype)
    r = mixture.responsibilities(poses)
    assert mixture.log_prob(poses).isfinite().all()
    torch.testing.assert_close(r.sum(-1), torch.ones(2, dtype=r.dtype))
    assert r.dtype == (D if dtype == D else torch.float32)
    assert all(x.isfinite().all() for x in mixture.sample())


def test_half_precision_computes_in_float32() -> None:
    predictions, poses = torch.randn(2, 3, 4).half(), torch.randn(2, 4).half()
    half, wide = CapsuleMixture(predictions, 0.5, 3.0), CapsuleMixture(predictions.float(), 0.5, 3.0)
    torch.testing.assert_close(half.log_prob(poses), wide.log_prob(poses.float()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sigma": 0.0}, r"sigma has a value of 0\.0"),
        ({"sigma": torch.tensor([1.0, math.inf])}, "sigma has a value of inf"),
        ({"sigma": math.nan}, "sigma has a value of nan"),
        ({"sigma": torch.ones(3)}, r"sigma has shape \(3,\)"),
        ({"kappa": torch.tensor([2.0, -1.0])}, r"kappa has a value of -1\.0"),
        ({"kappa": torch.tensor([2.0, math.inf])}, "kappa has a value of inf"),
        ({"kappa": torch.ones(2, 2)}, r"kappa has shape \(2, 2\)"),
        ({"log_prior": torch.full((2,), -math.inf)}, "log_prior is NaN"),
        ({"log_prior": torch.tensor([0.0, math.inf])}, "log_prior is NaN"),
        ({"log_prior": torch.zeros(3)}, r"log_prior has shape \(3,\)"),
        ({"mixing": "logs"}, "mixing is 'logs'.*'log'"),
        ({"predictions": torch.zeros(2, 3)}, r"predictions has shape \(2, 3\)"),
        ({"predictions": torch.zeros(3, 2, 0)}, r"predictions has shape \(3, 2, 0\)"),
        ({"predictions": torch.zeros(3, 2, 4, dtype=torch.int64)}, r"type torch\.int64"),
        ({"predictions": torch.full((3, 2, 4), math.nan)}, "predictions has values"),
    ],
)
def test_wrong_arguments(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"predictions": torch.zeros(3, 2, 4), "sigma": 1.0, "kappa": 1.0}
    with pytest.raises(UsageError, match=message):
        CapsuleMixture(**arguments | changes)


def test_wrong_poses_directions_and_masks() -> None:
    mixture = CapsuleMixture(torch.zeros(5, 3, 2, 4), 1.0, 1.0)
    poses = torch.zeros(5, 3, 4)
    for wrong in (torch.zeros(4), torch.zeros(2, 4), torch.zeros(3, 5), torch.zeros(2, 3, 4)):
        with pytest.raises(UsageError, match="poses has shape"):
            mixture.log_prob(wrong)
        with pytest.raises(UsageError, match="directions has shape"):
            mixture.mean(wrong)
    with pytest.raises(UsageError, match="poses has values"):
        mixture.responsibilities(torch.full((3, 4), math.nan))
    for call in (mixture.log_mixing, mixture.mean, mixture.sample, lambda x: mixture.log_prob(poses, x)):
        with pytest.raises(UsageError, match="directions has a row of length 2"):
            call(torch.ones(3, 4))
    for mask in (torch.ones(3), torch.ones(4, dtype=torch.bool), torch.ones(2, 3, dtype=torch.bool)):
        with pytest.raises(UsageError, match="mask has shape"):
            mixture.log_prob(poses, mask=mask)
