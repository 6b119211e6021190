"""The M steps: each parameter where it raises the bound the most, in the shape in which it was given."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mereo.generative.bessel import concentration, mean_resultant_length
from mereo.generative.inversion.free import FreeParents
from mereo.generative.inversion.problem import Children, Mixture, Statistics
from mereo.generative.inversion.sphere import SphereParents

_ITERATIONS = 40


def learn_parameters(
    mixture: Mixture,
    children: Children,
    statistics: Statistics,
    responsibilities: Tensor,
    parents: FreeParents | SphereParents,
    learn: Sequence[str],
    limits: tuple[float, float],
) -> Mixture:
    """The mixture with the parameters named by `learn` updated; limits: largest kappa, smallest sigma.

    rho_j   = mean_i r_ij
    sigma^2 = sum r_ij E|V_i - U_ij|^2 / (d sum r_ij)
    kappa   : sum r_ij (<D_i, m_ij> - s_ij A_d(kappa s_ij)) = 0, s_ij^2 = E|U_ij|^2;  sphere: s_ij = 1
    """
    largest, smallest = limits
    changed: dict[str, Any] = {}
    if "log_prior" in learn:
        changed["log_prior"] = _log_prior(responsibilities, mixture.log_prior)
    if "sigma" in learn:
        distance = (children.squares - 2 * statistics.poses + statistics.squares).clamp(min=0)
        spread = _sum_like(responsibilities * distance, mixture.sigma)
        weight = _sum_like(responsibilities, mixture.sigma)
        sigma = (spread / (mixture.dimension * weight).clamp(min=1e-30)).sqrt().clamp(min=smallest)
        changed["sigma"] = torch.where(weight > 0, sigma, mixture.sigma)
    if "kappa" in learn:
        directed = responsibilities * children.directed
        if isinstance(parents, SphereParents):
            length = _sum_like(directed * statistics.directions, mixture.kappa)
            weight = _sum_like(directed, mixture.kappa)
            share = (length / weight.clamp(min=1e-30)).clamp(0, 1)
            kappa = concentration(mixture.dimension, share, largest=largest)
            changed["kappa"] = torch.where(weight > 0, kappa, mixture.kappa)
        else:
            changed["kappa"] = _root(directed, statistics, mixture, largest)
    return replace(mixture, **changed)


def _sum_like(x: Tensor, parameter: Tensor) -> Tensor:
    """Sum over the batch and over the axes that the parameter shares: (batch, n, m) -> the parameter's shape."""
    return x.sum(0).to(torch.float64).sum_to_size(parameter.shape).to(parameter.dtype)


def _log_prior(responsibilities: Tensor, old: Tensor) -> Tensor:
    count = responsibilities.sum(0)
    if old.shape[1] == 1:
        count = count.sum(1, keepdim=True)
    total = count.sum(0, keepdim=True)
    return torch.where(total > 0, (count / total.clamp(min=1e-30)).log(), old)


def _root(weights: Tensor, statistics: Statistics, mixture: Mixture, largest: float) -> Tensor:
    """Where the falling function h(kappa) = sum r (<D, m> - s A(kappa s)) is 0, by bisection on log(1 + kappa).

    The result is on the near side of the root, so that the bound never falls.
    """
    lengths = statistics.squares.sqrt()
    observed = _sum_like(weights * statistics.directions, mixture.kappa)

    def above(kappa: Tensor) -> Tensor:
        expected = weights * lengths * mean_resultant_length(mixture.dimension, kappa * lengths)
        return observed - _sum_like(expected, mixture.kappa)

    low, high = torch.zeros_like(mixture.kappa), torch.full_like(mixture.kappa, largest)
    old = mixture.kappa.clamp(0, largest)
    above_old = above(old) > 0
    low, high = torch.where(above_old, old, low), torch.where(above_old, high, old)
    capped = above(high) > 0
    for _ in range(_ITERATIONS):
        middle = torch.expm1((low.log1p() + high.log1p()) / 2)
        up = above(middle) > 0
        low, high = torch.where(up, middle, low), torch.where(up, high, middle)
    near = torch.where(above_old, low, high)
    root = torch.where(capped, torch.full_like(near, largest), near)
    return torch.where(_sum_like(weights, mixture.kappa) > 0, root, mixture.kappa)
