"""The generative capsule model: worked numbers, loops, the exact evidence, monotone bounds, symmetries, refusals."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mereo.errors import UsageError
from papers.common.constellations import make_constellations, make_templates, similarity_basis
from papers.constellations.generative_capsule_model import GenerativeCapsuleModel
from papers.constellations.inference import infer_constellations
from papers.constellations.sinkhorn import log_sinkhorn

D = torch.float64
KINDS = ["doubly_stochastic", "mixture"]
POSE = torch.tensor([0.5, -0.25, 0.3 * math.cos(0.4), 0.3 * math.sin(0.4)], dtype=D)
FIFTY = torch.tensor([50.0], dtype=D)


def model(shapes: tuple[str, ...] = ("square", "triangle", "square"), **options: Any) -> GenerativeCapsuleModel:
    templates = make_templates(shapes)
    return GenerativeCapsuleModel(similarity_basis(templates.points), templates.owner, **options)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def close(got: Tensor, expected: Any) -> None:
    torch.testing.assert_close(got, torch.tensor(expected, dtype=got.dtype), rtol=0, atol=1e-6)


def square() -> tuple[GenerativeCapsuleModel, Tensor, Tensor, Tensor]:
    """A square of known pose, and responsibilities that know its corners."""
    own = model(("square",))
    return own, (own.basis @ POSE).unsqueeze(0), torch.ones(1, 4, dtype=torch.bool), torch.eye(4, dtype=D).unsqueeze(0)


def test_sinkhorn() -> None:
    scores = torch.tensor([[1.0, 1], [1, 3]], dtype=D).log()
    close(log_sinkhorn(scores, 2).exp(), [[0.636364, 0.363636], [0.368421, 0.631579]])
    limit = 3**0.5 / (1 + 3**0.5)
    close(log_sinkhorn(scores, 100).exp(), [[limit, 1 - limit], [1 - limit, limit]])


def test_worked_poses_and_bound() -> None:
    own, points, mask, r = square()
    mean, total = own.poses(points, r, FIFTY)
    torch.testing.assert_close(total[0, 0], 201 * torch.eye(4, dtype=D))
    close(mean[0, 0], [0.497512, -0.248756, 0.274944, 0.116244])
    log_density = own.log_density(points, mean, total, FIFTY)
    close((r * log_density).sum(), 6.305538)
    errors = (points[0] - (own.basis @ mean[0, 0])).square().sum(-1)
    spread = -(log_density[0].diagonal() - math.log(50 / (2 * math.pi))) / 25 - errors
    close(spread, [0.019900] * 4)
    after = own.update(points, mask, r, FIFTY)
    close(after.responsibilities[0, 0, 0], 0.977001)
    divergence = own.assign(log_density, r, mask, FIFTY)[1]
    # With r as it was: -KL(y) = -8.815813 and -KL(z) = -4 log 4 in place of the new assignment's.
    poses = after.bound - (after.responsibilities * log_density).sum() - divergence
    close(poses[0], -8.815813)
    close(6.305538 + poses[0] - 4 * math.log(4), -8.055452)


def test_a_known_assignment_gives_the_exact_evidence() -> None:
    own, points, _, r = square()
    mean, total = own.poses(points, r, FIFTY)
    stacked = own.basis.flatten(0, 1)
    joint = torch.distributions.MultivariateNormal(
        torch.zeros(8, dtype=D), torch.eye(8, dtype=D) / 50 + stacked @ stacked.T
    )
    close(joint.log_prob(points.flatten()), -2.510275)
    log_density = (r * own.log_density(points, mean, total, FIFTY)).sum()
    prior = torch.distributions.MultivariateNormal(torch.zeros(4, dtype=D), torch.eye(4, dtype=D))
    posterior = torch.distributions.MultivariateNormal(mean[0, 0], precision_matrix=total[0, 0])
    close(log_density - torch.distributions.kl_divergence(posterior, prior), joint.log_prob(points.flatten()).item())


def by_loops(own: GenerativeCapsuleModel, points: Tensor, r: Tensor, precision: float) -> tuple[Tensor, float]:
    """One update and its bound for one image with every slot filled, as the equations are written."""
    M, N, E = len(points), len(own.owner), own.basis.shape[-1]
    mean, total, errors = [], [], torch.zeros(M, N, dtype=D)
    for k in range(own.objects):
        parts = [n for n in range(N) if own.owner[n] == k]
        T = own.prior_precision * torch.eye(E, dtype=D)
        if own.prior_mean == "points":
            mu = torch.cat((points.mean(0), torch.zeros(E - 2, dtype=D)))
        else:
            mu = torch.zeros(E, dtype=D) if own.prior_mean == "zero" else torch.tensor(own.prior_mean, dtype=D)
        b = own.prior_precision * mu
        for m, n in itertools.product(range(M), parts):
            T = T + precision * r[m, n] * own.basis[n].T @ own.basis[n]
            b = b + precision * r[m, n] * own.basis[n].T @ points[m]
        mean.append(T.inverse() @ b)
        total.append(T)
        for m, n in itertools.product(range(M), parts):
            F = own.basis[n]
            errors[m, n] = (points[m] - F @ mean[k]).square().sum() + (F.T @ F @ T.inverse()).trace()
    density = math.log(precision / (2 * math.pi)) - precision / 2 * errors
    bound = 0.0
    for k in range(own.objects):
        prior = torch.distributions.MultivariateNormal(mu, torch.eye(E, dtype=D) / own.prior_precision)
        found = torch.distributions.MultivariateNormal(mean[k], precision_matrix=total[k])
        bound -= torch.distributions.kl_divergence(found, prior).item()
    if own.assignment == "mixture":
        Q = own.columns
        density = torch.cat((density, torch.full((M, Q - N), math.log(0.25), dtype=D)), 1)
        alpha = 1 + r.sum(0)
        dirichlets = torch.distributions.Dirichlet(alpha), torch.distributions.Dirichlet(torch.ones(Q, dtype=D))
        log_pi = torch.digamma(alpha) - torch.digamma(alpha.sum())
        new = (density + log_pi).softmax(1)
        bound += (new * (density + log_pi - new.log())).sum().item()
        return new, bound - torch.distributions.kl_divergence(*dirichlets).item()
    Q = N + own.clutter
    rho = torch.zeros(Q, Q, dtype=D)
    peak = math.log(precision / (2 * math.pi))
    rho[:M, :N], rho[:M, N:] = density - peak, math.log(0.25) - peak
    rho = (rho - math.log(Q)).exp()
    for _ in range(own.rounds):
        rho = rho / rho.sum(0)
        rho = rho / rho.sum(1, keepdim=True)
    bound += (rho[:M, :N] * density).sum().item() + math.log(0.25) * rho[:M, N:].sum().item()
    return rho[:M], bound + (rho * (-math.log(Q) - rho.log())).sum().item()


@pytest.mark.parametrize("mean", ["zero", "points", (0.3, -0.2, 0.5, 0.1)])
@pytest.mark.parametrize("clutter", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_loops_whatever_else_is_in_the_batch(kind: str, clutter: int, mean: Any) -> None:
    own = model(assignment=kind, clutter=clutter, prior_precision=0.7, prior_mean=mean)
    data = make_constellations(4, seeded(), noise=0.1, clutter=clutter)
    r = torch.rand(4, 11 + clutter, own.columns, dtype=D)
    r = r / r.sum(-1, keepdim=True) * data.mask.unsqueeze(-1)
    precision = torch.tensor([5.0, 20, 50, 10], dtype=D)
    after = own.update(data.points, data.mask, r, precision)
    for image, there in enumerate(data.mask):
        new, bound = by_loops(own, data.points[image, there], r[image, there], precision[image].item())
        torch.testing.assert_close(after.responsibilities[image, there], new)
        assert after.bound[image].item() == pytest.approx(bound)
        assert (after.responsibilities[image, ~there] == 0).all()


def test_the_bound_of_the_mixture_never_falls() -> None:
    own = model(assignment="mixture", clutter=1)
    data = make_constellations(50, seeded(), noise=0.1, clutter=2)
    found = infer_constellations(own, data.points, data.mask, seeded(), max_precision=None, restarts=2)
    assert found.trace.shape[1] > 20 and found.finished.all() and (found.precision == 50).all()
    assert (found.trace.diff(dim=-1) > -1e-9).all()


def test_the_bound_of_the_mixture_is_below_the_exact_evidence() -> None:
    """By summing over the assignments of three points and their proportions, poses integrated in closed form."""
    own = model(("triangle",), assignment="mixture")
    points = own.basis @ POSE
    evidence = []
    for parts in itertools.product(range(3), repeat=3):
        stacked = own.basis[list(parts)].flatten(0, 1)
        joint = torch.distributions.MultivariateNormal(
            torch.zeros(6, dtype=D), torch.eye(6, dtype=D) / 50 + stacked @ stacked.T
        )
        counts = torch.tensor(parts).bincount(minlength=3).to(D)
        # The proportions are uniform on the simplex: Dirichlet-multinomial.
        proportions = (1 + counts).lgamma().sum() + math.lgamma(3) - math.lgamma(6)
        evidence.append(joint.log_prob(points.flatten()) + proportions)
    exact = torch.stack(evidence).logsumexp(0)
    found = infer_constellations(own, points.unsqueeze(0), torch.ones(1, 3) > 0, seeded(), max_precision=None)
    assert exact - 2 < found.bound[0] < exact


@pytest.mark.parametrize("kind", KINDS)
def test_moving_or_turning_the_image_leaves_responsibilities(kind: str) -> None:
    own = model(assignment=kind, prior_precision=1e-9)
    data = make_constellations(3, seeded(), noise=0.1)
    r = torch.rand(3, 11, own.columns, dtype=D) * data.mask.unsqueeze(-1)
    precision = torch.full((3,), 20.0, dtype=D)
    plain = own.update(data.points, data.mask, r, precision).responsibilities
    c, s = math.cos(0.7), math.sin(0.7)
    turn = torch.tensor([[c, s], [-s, c]], dtype=D)
    for moved in (data.points + torch.tensor([3.0, -1], dtype=D), data.points @ turn):
        after = own.update(moved, data.mask, r, precision).responsibilities
        torch.testing.assert_close(after, plain, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prior_that_follows_the_points_makes_moving_them_change_nothing(kind: str) -> None:
    own = model(assignment=kind, prior_precision=2.0, prior_mean="points")
    data = make_constellations(3, seeded(), noise=0.1)
    r = torch.rand(3, 11, own.columns, dtype=D) * data.mask.unsqueeze(-1)
    precision = torch.full((3,), 20.0, dtype=D)
    plain = own.update(data.points, data.mask, r, precision)
    by = torch.tensor([3.0, -1], dtype=D)
    moved = own.update(data.points + by, data.mask, r, precision)
    torch.testing.assert_close(moved.responsibilities, plain.responsibilities)
    torch.testing.assert_close(moved.bound, plain.bound)
    torch.testing.assert_close(moved.mean[..., :2], plain.mean[..., :2] + by)


def test_an_object_without_points_stays_at_the_prior() -> None:
    own = model(prior_mean=(0.3, -0.2, 0.5, 0.1))
    data = make_constellations(2, seeded())
    mean, _ = own.poses(
        data.points, torch.zeros(2, 11, 11, dtype=D), FIFTY.expand(2), own.prior_means(data.points, data.mask)
    )
    torch.testing.assert_close(mean, torch.tensor(own.prior_mean, dtype=D).expand(2, 3, 4))


def test_certain_points_give_least_squares_poses() -> None:
    templates = make_templates(("square",))
    own = GenerativeCapsuleModel(similarity_basis(templates.points), templates.owner)
    points = torch.randn(1, 4, 2, dtype=D)
    mean, _ = own.poses(points, torch.eye(4, dtype=D).unsqueeze(0), torch.tensor([1e9], dtype=D))
    expected = torch.linalg.lstsq(own.basis.flatten(0, 1), points.flatten().unsqueeze(-1)).solution
    torch.testing.assert_close(mean[0, 0], expected.squeeze(-1))


def test_doubly_stochastic_columns_sum_to_one_at_the_most() -> None:
    own = model(rounds=50)
    data = make_constellations(20, seeded())
    found = infer_constellations(own, data.points, data.mask, seeded(), restarts=1)
    torch.testing.assert_close(found.responsibilities.sum(-1), data.mask.to(D))
    assert found.responsibilities.sum(1).max() < 1 + 1e-3


def test_single_points() -> None:
    own = model(("triangle", "square"))
    alone, shared, torn = torch.zeros(3, 4, 7, dtype=D)
    alone[0, 1], shared[0, 1], shared[1, 2], torn[0, 1:3] = 0.95, 0.95, 1.1, 0.5
    assert own.single_point(torch.stack((alone, shared, torn))).tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"assignment": "mixed"}, "Did you mean 'mixture'"),
        ({"clutter": -1}, "clutter is -1"),
        ({"prior_precision": 0}, "prior_precision is 0"),
        ({"rounds": 0}, "rounds is 0"),
        ({"prior_mean": "centre"}, "prior_mean is 'centre'"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        model(**options)
