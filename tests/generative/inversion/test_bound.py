"""The bound as a function of the parameters: its value is the inversion's, its gradients those at the maximum."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from inversion_by_loops import free_bound, random_problem, tangents
from mereo.generative.inversion import FreeParents, Inversion, invert
from mereo.generative.inversion.free import bound, gram
from mereo.generative.inversion.prepare import Problem, prepare

D = torch.float64


def solved(sweeps: int = 3, **changes: Any) -> tuple[Problem, Inversion, FreeParents]:
    """A problem for which a child is absent, one has no direction and a component is absent; and its inversion."""
    draws = torch.Generator().manual_seed(2)
    poses, transforms = (
        torch.randn(2, 4, 3, generator=draws, dtype=D),
        torch.randn(4, 3, 3, 2, generator=draws, dtype=D),
    )
    poses[0, 1] = 0
    mask = torch.tensor([[True] * 4, [True, True, False, True]])
    prior = torch.randn(3, 2, generator=draws, dtype=D)
    given = {"sigma": 0.7, "kappa": 1.5, "log_prior": torch.tensor([0.1, -torch.inf, 0.0], dtype=D)} | changes
    found = invert(poses, transforms, **given, mask=mask, prior=prior, sweeps=sweeps)
    problem = prepare(
        poses, transforms, given["sigma"], given["kappa"], "free", None, given["log_prior"], None, mask, prior,
        1.0, 0.0, None, None,
    )  # fmt: skip
    assert isinstance(found.parents, FreeParents)
    return problem, found, found.parents


def test_it_is_the_bound_of_the_inversion() -> None:
    problem, found, parents = solved()
    value = bound(problem.mixture, problem.children, parents, found.responsibilities.mT)
    torch.testing.assert_close(value, found.elbo)


def test_it_equals_loops_for_any_responsibilities() -> None:
    p = random_problem(3, 4, 3, 3, 2)
    r = torch.rand(4, 3, dtype=D).softmax(-1)
    r[0] = torch.tensor([0.0, 1, 0])
    mean0, precision0 = torch.randn(3, 2, dtype=D), torch.eye(2, dtype=D).expand(3, 2, 2)
    found = invert(
        p.poses, p.transforms, sigma=p.sigma, kappa=p.kappa, log_prior=p.log_prior, directions=p.directions,
        prior=mean0, sweeps=1,
    )  # fmt: skip
    problem = prepare(
        p.poses, p.transforms, p.sigma, p.kappa, "free", p.directions, p.log_prior, None, None, mean0, 1.0, 0.0,
        None, None,
    )  # fmt: skip
    assert isinstance(found.parents, FreeParents)
    value = bound(problem.mixture, problem.children, found.parents, r.mT.unsqueeze(0))
    expected = free_bound(
        p, r, found.mean, found.covariance, tangents(p, found.mean, found.covariance), mean0, precision0
    )
    assert value.item() == pytest.approx(expected, rel=1e-10)


def test_gradients() -> None:
    problem, found, parents = solved()
    mixture, r = problem.mixture, found.responsibilities.mT
    leaves = [
        x.detach().clone().requires_grad_() for x in (mixture.weight, mixture.sigma, mixture.kappa, parents.prior_mean)
    ]

    def at(weight: Tensor, sigma: Tensor, kappa: Tensor, prior_mean: Tensor) -> Tensor:
        held = replace(parents, gram=gram(weight), prior_mean=prior_mean)
        return bound(replace(mixture, weight=weight, sigma=sigma, kappa=kappa), problem.children, held, r)

    assert torch.autograd.gradcheck(at, leaves)


@pytest.mark.parametrize("name", ["sigma", "kappa"])
def test_at_the_best_beliefs_the_gradient_is_that_of_the_maximum(name: str) -> None:
    """The beliefs need no gradient: they are where the bound does not change with them."""
    base, step = {"sigma": 0.7, "kappa": 1.5}[name], 1e-3
    problem, found, parents = solved(200)
    value = torch.tensor([[base]], dtype=D, requires_grad=True)
    total = bound(replace(problem.mixture, **{name: value}), problem.children, parents, found.responsibilities.mT).sum()
    (slope,) = torch.autograd.grad(total, value)
    start = {"start_parents": (found.mean, found.covariance)}
    ends = []
    for changed in (base + step, base - step):
        given = {"sigma": 0.7, "kappa": 1.5, "log_prior": torch.tensor([0.1, -torch.inf, 0.0], dtype=D)} | {
            name: changed
        }
        again = invert(
            problem.children.poses, problem.mixture.weight.transpose(0, 1), **given, **start, sweeps=60,
            mask=problem.children.mask.squeeze(1), prior=parents.prior_mean,
        )  # fmt: skip
        ends.append(again.elbo.sum().item())
    assert slope.item() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4)
