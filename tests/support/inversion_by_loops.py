"""The inversion of the capsule mixture for one set of children, as its equations are written: loops in float64."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from directional_exact import log_c, slope_over_kappa

D = torch.float64


@dataclass
class Loops:
    """What is to be explained: m children, n components, each of a parent."""

    poses: Tensor
    """(m, d)"""
    transforms: Tensor
    """(m, n, d, e)"""
    sigma: Tensor
    kappa: Tensor
    log_prior: Tensor
    """(m, n) each"""
    owner: list[int]
    directions: Tensor
    """(m, d), 0 without a direction"""
    there: list[bool]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Children that are there and components that may have caused them."""
        m, n = self.sigma.shape
        return [
            (i, j)
            for i, j in itertools.product(range(m), range(n))
            if self.there[i] and self.log_prior[i, j] > -math.inf
        ]

    @property
    def arguments(self) -> dict[str, Any]:
        """The same problem in the arguments of `invert`."""
        return {
            "poses": self.poses, "transforms": self.transforms, "sigma": self.sigma, "kappa": self.kappa,
            "log_prior": self.log_prior, "directions": self.directions, "mask": torch.tensor(self.there),
            "owner": torch.tensor(self.owner),
        }  # fmt: skip

    @property
    def parents(self) -> int:
        return max(self.owner) + 1

    def normal(self, i: int, j: int, product: float, square: float) -> float:
        """E log N, for E <V, U> and E |U|^2."""
        variance, d = self.sigma[i, j].item() ** 2, self.poses.shape[1]
        distance = self.poses[i].square().sum().item() - 2 * product + square
        return -distance / (2 * variance) - d / 2 * math.log(2 * math.pi * variance)


def random_problem(
    seed: int, m: int = 3, n: int = 2, d: int = 2, e: int = 2, *, orthogonal: bool = False, **changes: Any
) -> Loops:
    """A random problem with parameters of its own for every pair."""
    draws = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draws, dtype=D)

    poses, transforms = normal(m, d), normal(m, n, d, e)
    if orthogonal:
        transforms = torch.linalg.qr(transforms)[0]
    parameters = {
        "poses": poses, "transforms": transforms, "sigma": 0.3 + normal(m, n).abs(), "kappa": 2 * normal(m, n).abs(),
        "log_prior": normal(m, n).log_softmax(-1), "owner": list(range(n)), "directions": normal(m, d),
        "there": [True] * m,
    }  # fmt: skip
    parameters |= changes
    parameters["directions"] = torch.nn.functional.normalize(parameters["directions"], dim=-1)
    return Loops(**parameters)


def responsibilities(p: Loops, scores: Tensor) -> Tensor:
    """softmax_j(log rho_ij + score_ij); 0 for absent children."""
    r = torch.zeros_like(p.sigma)
    for i, there in enumerate(p.there):
        if there:
            r[i] = (p.log_prior[i] + scores[i]).softmax(-1)
    return r


def expected(p: Loops, r: Tensor, scores: Tensor) -> float:
    """sum_ij r_ij (log rho_ij + score_ij - log r_ij)."""
    return sum(
        r[i, j].item() * (p.log_prior[i, j] + scores[i, j] - r[i, j].log()).item() for i, j in p.pairs if r[i, j] > 0
    )


# Gaussian beliefs: mean (parents, e) and covariance (parents, e, e).


def squares(p: Loops, mean: Tensor, covariance: Tensor) -> Tensor:
    """E |U_ij|^2."""
    s = torch.zeros_like(p.sigma)
    for i, j in itertools.product(*map(range, s.shape)):
        T, q = p.transforms[i, j], p.owner[j]
        s[i, j] = (T @ mean[q]).square().sum() + (T @ covariance[q] @ T.T).trace()
    return s


def tangents(p: Loops, mean: Tensor, covariance: Tensor) -> Tensor:
    """xi, where the bounds of log C touch it."""
    return p.kappa * squares(p, mean, covariance).sqrt()


def free_scores(p: Loops, mean: Tensor, covariance: Tensor, xi: Tensor) -> Tensor:
    """E log N + E log vMF, the latter by its bound."""
    scores, s = torch.zeros_like(p.sigma), squares(p, mean, covariance)
    d = p.poses.shape[1]
    for i, j in p.pairs:
        u = p.transforms[i, j] @ mean[p.owner[j]]
        x, k = xi[i, j].item(), p.kappa[i, j].item()
        scores[i, j] = p.normal(i, j, (p.poses[i] @ u).item(), s[i, j].item())
        if not p.directions[i].any():
            scores[i, j] += log_c(d, 0.0)
            continue
        bound = log_c(d, x) - slope_over_kappa(d, x) / 2 * (k**2 * s[i, j].item() - x**2)
        scores[i, j] += k * (p.directions[i] @ u).item() + bound
    return scores


def free_update(
    p: Loops,
    r: Tensor,
    xi: Tensor,
    mean0: Tensor,
    precision0: Tensor,
    sparsity: float = 0.0,
    width: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The Gaussian beliefs that are best for r and xi."""
    means, covariances = [], []
    for q in range(p.parents):
        precision, pull = precision0[q].clone(), precision0[q] @ mean0[q]
        if sparsity:
            assert width is not None
            precision = precision + sparsity / width[q] * torch.eye(len(precision), dtype=D)
        for i, j in p.pairs:
            if p.owner[j] != q:
                continue
            T, k, inverse = p.transforms[i, j], p.kappa[i, j], p.sigma[i, j] ** -2
            sure = k**2 * slope_over_kappa(p.poses.shape[1], xi[i, j].item()) if p.directions[i].any() else 0.0
            precision = precision + r[i, j] * (inverse + sure) * T.T @ T
            pull = pull + r[i, j] * T.T @ (inverse * p.poses[i] + k * p.directions[i])
        covariances.append(precision.inverse())
        means.append(covariances[-1] @ pull)
    return torch.stack(means), torch.stack(covariances)


def free_bound(
    p: Loops, r: Tensor, mean: Tensor, covariance: Tensor, xi: Tensor, mean0: Tensor, precision0: Tensor,
    sparsity: float = 0.0, width: Tensor | None = None,
) -> float:  # fmt: skip
    """The evidence lower bound, with the Gaussian divergence of PyTorch."""
    bound = expected(p, r, free_scores(p, mean, covariance, xi))
    for q in range(p.parents):
        belief, prior = (
            MultivariateNormal(mean[q], covariance[q]),
            MultivariateNormal(mean0[q], precision_matrix=precision0[q]),
        )
        bound -= kl_divergence(belief, prior).item()
        if sparsity:
            assert width is not None
            square = (mean[q].square().sum() + covariance[q].trace()).item()
            bound -= sparsity * (square / (2 * width[q].item()) + width[q].item() / 2)
    return bound


# Beliefs about directions: natural parameter (parents, e).


def resultants(natural: Tensor) -> Tensor:
    """E v."""
    e = natural.shape[-1]
    return torch.stack([slope_over_kappa(e, eta.norm().item()) * eta for eta in natural])


def sphere_scores(p: Loops, natural: Tensor) -> Tensor:
    scores, mean, d = torch.zeros_like(p.sigma), resultants(natural), p.poses.shape[1]
    for i, j in p.pairs:
        u = p.transforms[i, j] @ mean[p.owner[j]]
        k = p.kappa[i, j].item()
        scores[i, j] = p.normal(i, j, (p.poses[i] @ u).item(), 1.0)
        scores[i, j] += log_c(d, k) + k * (p.directions[i] @ u).item() if p.directions[i].any() else log_c(d, 0.0)
    return scores


def sphere_update(p: Loops, r: Tensor, natural0: Tensor) -> Tensor:
    natural = natural0.clone()
    for i, j in p.pairs:
        seen = p.poses[i] / p.sigma[i, j] ** 2 + p.kappa[i, j] * p.directions[i]
        natural[p.owner[j]] += r[i, j] * p.transforms[i, j].T @ seen
    return natural


def sphere_bound(p: Loops, r: Tensor, natural: Tensor, natural0: Tensor) -> float:
    bound, e = expected(p, r, sphere_scores(p, natural)), natural.shape[-1]
    for eta, eta0, mean in zip(natural, natural0, resultants(natural), strict=True):
        bound -= log_c(e, eta.norm().item()) - log_c(e, eta0.norm().item()) + ((eta - eta0) @ mean).item()
    return bound


# The evidence itself, in the plane: every assignment, poses integrated on a grid.


def log_likelihood(p: Loops, i: int, j: int, v: Tensor) -> Tensor:
    """log N + log vMF of a child for each of many poses (N, 2) of its parent."""
    u = v @ p.transforms[i, j].T
    variance, length = p.sigma[i, j] ** 2, p.kappa[i, j] * u.norm(dim=-1)
    log_normal = -(p.poses[i] - u).square().sum(-1) / (2 * variance) - (2 * math.pi * variance).log()
    if not p.directions[i].any():
        return log_normal - math.log(2 * math.pi)
    log_normaliser = -math.log(2 * math.pi) - torch.special.i0e(length).log() - length
    return log_normal + log_normaliser + p.kappa[i, j] * (u @ p.directions[i])


def evidence(p: Loops, v: Tensor, log_prior: Tensor) -> tuple[float, Tensor]:
    """log p(children), and P(z_i = j | children) as (m, n).

    Args:
        v: poses (N, 2) to sum over.
        log_prior: of each parent at them, with the weight of the sum, (parents, N).
    """
    joint: dict[tuple[int, ...], float] = {}
    present = [i for i, there in enumerate(p.there) if there]
    likelihood = {(i, j): log_likelihood(p, i, j, v) for i, j in p.pairs}
    known: dict[tuple[Any, ...], float] = {}
    for z in itertools.product(range(p.sigma.shape[1]), repeat=len(present)):
        chosen = tuple(zip(present, z, strict=True))
        if any(pair not in likelihood for pair in chosen):
            continue
        total = sum(p.log_prior[pair].item() for pair in chosen)
        for q in range(p.parents):
            key = (q, *(pair for pair in chosen if p.owner[pair[1]] == q))
            if key not in known:
                known[key] = sum((likelihood[pair] for pair in key[1:]), log_prior[q]).logsumexp(0).item()
            total += known[key]
        joint[z] = total
    whole = torch.tensor(list(joint.values()), dtype=D).logsumexp(0).item()
    posterior = torch.zeros_like(p.sigma)
    for z, log_joint in joint.items():
        for i, j in zip(present, z, strict=True):
            posterior[i, j] += math.exp(log_joint - whole)
    return whole, posterior


def free_evidence(
    p: Loops, mean0: Tensor, precision0: Tensor, reach: float = 8.0, steps: int = 321
) -> tuple[float, Tensor]:
    """For Gaussian priors, by the trapezoidal rule, which is as good as exact for what vanishes at the ends."""
    line = torch.linspace(-reach, reach, steps, dtype=D)
    v = torch.cartesian_prod(line, line)
    priors = [
        MultivariateNormal(mean, precision_matrix=L).log_prob(v) for mean, L in zip(mean0, precision0, strict=True)
    ]
    return evidence(p, v, torch.stack(priors) + 2 * math.log(line[1] - line[0]))


def sphere_evidence(p: Loops, natural0: Tensor, steps: int = 2000) -> tuple[float, Tensor]:
    """For von Mises priors, by sums over the circle."""
    turn = torch.arange(steps, dtype=D) * (2 * math.pi / steps)
    v = torch.stack((turn.cos(), turn.sin()), -1)
    priors = [v @ eta + log_c(2, eta.norm().item()) + math.log(2 * math.pi / steps) for eta in natural0]
    return evidence(p, v, torch.stack(priors))
