"""M steps: each parameter where the bound is highest, in every shape in which it can be given; limits; absent ones."""

import itertools
import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from directional_exact import MP, ratio
from inversion_by_loops import resultants
from mereo.generative.inversion import FreeParents, Inversion, SphereParents, invert
from mereo.generative.inversion.invert import assign
from mereo.generative.inversion.learning import learn_parameters
from mereo.generative.inversion.prepare import Problem, prepare
from mereo.generative.inversion.problem import Mixture
from mereo.generative.von_mises_fisher import VonMisesFisher

D = torch.float64
FAMILIES = ["free", "sphere"]
SHAPES = {"shared": (1, 1), "of components": (1, 3), "of children": (4, 1), "of pairs": (4, 3)}
BATCH, CHILDREN, COMPONENTS, DIM = 5, 4, 3, 3


def data() -> tuple[Tensor, Tensor]:
    poses = torch.randn(BATCH, CHILDREN, DIM, dtype=D)
    return poses, torch.linalg.qr(torch.randn(CHILDREN, COMPONENTS, DIM, DIM, dtype=D))[0]


class Step(NamedTuple):
    """Beliefs, responsibilities (batch, m, n), and the mixtures before and after."""

    problem: Problem
    parents: FreeParents | SphereParents
    r: Tensor
    after: Mixture

    def entries(self, shape: tuple[int, int]) -> dict[tuple[int, int], list[tuple[int, int, int]]]:
        """Which pairs (batch, i, j) share each entry of a parameter."""
        groups: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for b, i, j in itertools.product(range(BATCH), range(CHILDREN), range(COMPONENTS)):
            groups.setdefault((min(i, shape[0] - 1), min(j, shape[1] - 1)), []).append((b, i, j))
        return groups

    def vote(self, b: int, i: int, j: int) -> tuple[Tensor, float]:
        """E U_ij and E |U_ij|^2."""
        T = self.problem.mixture.weight[j, i]
        if isinstance(self.parents, SphereParents):
            return T @ resultants(self.parents.natural[b])[j], 1.0
        mean, covariance = self.parents.mean[b, j], self.parents.covariance[b, j]
        return T @ mean, ((T @ mean).square().sum() + (T @ covariance @ T.T).trace()).item()


def step(
    family: str, shape: tuple[int, int], *learn: str, poses: Tensor | None = None, mask: Tensor | None = None,
    kappa: float = 1.5, limits: tuple[float, float] = (100.0, 1e-3), directions: Tensor | None = None,
) -> Step:  # fmt: skip
    """One M step from random responsibilities, at the beliefs that are best for others."""
    own, transforms = data()
    poses = own if poses is None else poses
    problem = prepare(
        poses, transforms, torch.full(shape, 0.6, dtype=D), torch.full(shape, kappa, dtype=D), family, directions,
        torch.zeros(shape[0], COMPONENTS, dtype=D), None, mask, None, 1.0, 0.0, None, None,
    )  # fmt: skip
    mixture, children, parents = problem.mixture, problem.children, problem.parents
    found = parents.statistics(mixture, children)
    start = problem.random_start(None)
    parents = parents.update(mixture, children, start, parents.log_normaliser(mixture, found)[1])  # type: ignore[arg-type]
    r = problem.random_start(None)
    after = learn_parameters(mixture, children, parents.statistics(mixture, children), r, parents, learn, limits)
    return Step(problem, parents, r.mT, after)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_sigma(family: str, shape: tuple[int, int]) -> None:
    done = step(family, shape, "sigma")
    poses, r = done.problem.children.poses, done.r
    for place, pairs in done.entries(shape).items():
        total = weight = 0.0
        for b, i, j in pairs:
            u, square = done.vote(b, i, j)
            total += r[b, i, j].item() * (poses[b, i].square().sum() - 2 * poses[b, i] @ u + square).item()
            weight += r[b, i, j].item()
        assert done.after.sigma.mT[place].item() ** 2 == pytest.approx(total / (DIM * weight), rel=1e-10)
    assert done.after.sigma.mT.shape == shape and done.after.kappa is done.problem.mixture.kappa


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_kappa(family: str, shape: tuple[int, int]) -> None:
    """The root of h by mpmath where h(0) is above 0, and 0 elsewhere."""
    done = step(family, shape, "kappa")
    directions = torch.nn.functional.normalize(done.problem.children.poses, dim=-1)
    roots = 0
    for place, pairs in done.entries(shape).items():
        terms = []
        for b, i, j in pairs:
            u, square = done.vote(b, i, j)
            terms.append((done.r[b, i, j].item(), (directions[b, i] @ u).item(), math.sqrt(square)))

        def h(kappa: Any, terms: list[tuple[float, float, float]] = terms) -> float:
            return sum(r * (observed - s * ratio(DIM, float(kappa) * s)) for r, observed, s in terms)

        found = done.after.kappa.mT[place].item()
        if h(0) <= 0:
            assert found == pytest.approx(0, abs=1e-9)
            continue
        roots += 1
        assert found == pytest.approx(float(MP.findroot(h, (0, 100), solver="anderson", tol=1e-20)), rel=1e-8)
    assert roots
    assert done.after.kappa.mT.shape == shape and done.after.sigma is done.problem.mixture.sigma


@pytest.mark.parametrize("children", [1, CHILDREN])
def test_log_prior(children: int) -> None:
    done = step("free", (children, 1), "log_prior")
    expected = done.r.mean(0) if children > 1 else done.r.mean((0, 1)).unsqueeze(0)
    torch.testing.assert_close(done.after.log_prior.mT.exp(), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_absent_children_do_not_count(family: str) -> None:
    mask = torch.rand(BATCH, CHILDREN) > 0.4
    poses, transforms = data()
    noise = torch.where(mask.unsqueeze(-1), poses, 100 * torch.randn_like(poses))
    options: dict[str, Any] = {
        "sigma": 0.6, "kappa": 1.5, "family": family, "mask": mask, "sweeps": 5,
        "learn": ("sigma", "kappa", "log_prior"),
    }  # fmt: skip
    one, other = (invert(x, transforms, **options) for x in (poses, noise))
    for name in ("sigma", "kappa", "log_prior", "trace"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_children_parameters_stay(family: str) -> None:
    poses, transforms = data()
    mask = torch.zeros(BATCH, CHILDREN, dtype=torch.bool)
    prior = torch.tensor([0.5, 0.3, 0.2], dtype=D).log()
    found = invert(
        poses, transforms, sigma=0.6, kappa=1.5, log_prior=prior, family=family, mask=mask,
        learn=("sigma", "kappa", "log_prior"),
    )  # fmt: skip
    assert found.sigma.item() == 0.6 and found.kappa.item() == 1.5
    torch.testing.assert_close(found.log_prior[0], prior)
    assert (found.elbo == 0).all() and (found.responsibilities == 0).all() and (found.mean == 0).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_children_without_direction_do_not_teach_kappa(family: str) -> None:
    poses, _ = data()
    directions = torch.nn.functional.normalize(torch.randn_like(poses), dim=-1)
    directions[:, 1:] = 0
    done = step(family, (CHILDREN, 1), "kappa", directions=directions)
    kappa = done.after.kappa.mT[:, 0]
    assert kappa[0] != 1.5 and (kappa[1:] == 1.5).all()


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_limits(family: str) -> None:
    """Children that are just what one parent predicts: kappa and 1 / sigma would run off."""
    _, transforms = data()
    parents = torch.nn.functional.normalize(torch.randn(BATCH, DIM, dtype=D), dim=-1)
    poses = torch.einsum("mde,be->bmd", transforms[:, 0], parents)
    found = invert(
        poses, transforms[:, :1], sigma=0.5, family=family, learn=("sigma", "kappa"), sweeps=60,
        prior_precision=1.0, largest_kappa=7.0, smallest_sigma=0.1,
    )  # fmt: skip
    assert found.kappa.item() == 7 and found.sigma.item() == 0.1
    assert (found.trace.sum(1).diff() >= -1e-9).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_directions_against_the_predictions_have_kappa_zero(family: str) -> None:
    poses, transforms = data()
    prior = torch.tensor([[1.0, 0, 0]], dtype=D).expand(COMPONENTS, 3)
    given: dict[str, Any] = {"prior": prior, "prior_precision": 1e6} if family == "free" else {"prior": 1e6 * prior}
    away = -torch.einsum("mde,e->md", transforms[:, 0], prior[0]).expand(BATCH, -1, -1)
    found = invert(
        poses, transforms[:, :1].expand(-1, COMPONENTS, -1, -1), sigma=0.5, kappa=2.0, directions=away, family=family,
        learn=("kappa",), **given,
    )  # fmt: skip
    assert found.kappa.item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("name", ["sigma", "kappa", "log_prior"])
@pytest.mark.parametrize("family", FAMILIES)
def test_learning_raises_the_bound_and_returns_what_it_learned(family: str, name: str) -> None:
    poses, transforms = data()
    options: dict[str, Any] = {"family": family, "sweeps": 10, "sigma": 0.6, "kappa": 1.5}
    plain = invert(poses, transforms, **options)
    start = {"start": plain.responsibilities}
    if family == "free":
        start = {"start_parents": (plain.mean, plain.covariance)}  # type: ignore[dict-item]
    learned = invert(poses, transforms, **options, **start, learn=(name,))
    assert (learned.trace.sum(1).diff() >= -1e-9).all()
    assert learned.elbo.sum() > plain.elbo.sum() + 1e-3
    # The returned bound belongs to the returned parameters.
    problem = prepare(
        poses, transforms, learned.sigma, learned.kappa, family, None, learned.log_prior, None, None, None, 1.0, 0.0,
        None, None,
    )  # fmt: skip
    statistics = learned.parents.statistics(problem.mixture, problem.children)
    torch.testing.assert_close(assign(problem.mixture, problem.children, learned.parents, statistics)[1], learned.elbo)
    for other in {"sigma", "kappa", "log_prior"} - {name}:
        assert torch.equal(getattr(learned, other), getattr(plain, other))


@pytest.mark.long
def test_the_parameters_of_the_data_are_recovered() -> None:
    """Sigma, kappa and the proportions that children were drawn with, by parents that are known."""
    draws, count = torch.Generator().manual_seed(3), 3000
    parents = 2 * torch.nn.functional.normalize(torch.randn(2, 3, generator=draws, dtype=D), dim=-1)
    chosen = (torch.rand(count, 1, generator=draws) < 0.25).long()
    poses = parents[chosen] + 0.4 * torch.randn(count, 1, 3, generator=draws, dtype=D)
    directions = VonMisesFisher(parents[chosen] / 2, 6.0).sample()
    found: Inversion = invert(
        poses, torch.eye(3, dtype=D).expand(2, 3, 3), sigma=1.0, kappa=0.5, directions=directions, prior=parents,
        prior_precision=1e8, learn=("sigma", "kappa", "log_prior"), sweeps=30,
    )  # fmt: skip
    # The concentration of a direction is kappa times the length of its prediction.
    assert found.kappa.item() == pytest.approx(3.0, rel=0.05)
    assert found.sigma.item() == pytest.approx(0.4, rel=0.03)
    assert found.log_prior.exp()[0, 1].item() == pytest.approx(0.25, abs=0.03)
