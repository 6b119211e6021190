"""Gaussians fitted to votes, and how well each vote fits its Gaussian: the two halves of EM routing, from stored votes.

Source: Hinton, Sabour, Frosst, "Matrix capsules with EM routing", ICLR 2018, procedure 1.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

EMPTY = 1e-8
"""Least sum of weights that a parent's weights are divided by, so that one without children has a mean of 0."""

LEAST_FIT = -1e30
"""Least log density of a vote, so that one far from every Gaussian is divided equally, not by inf - inf."""


class Gaussians(NamedTuple):
    """One diagonal Gaussian for each receiver.

    Shapes: mean, variance (batch, receivers, pose).
    """

    mean: Tensor
    variance: Tensor


class Floor(NamedTuple):
    """The least variance, for a receiver with one sender has none of its own.

    Attributes:
        least: added to every variance, or its lower bound.
        clamps: whether it is a lower bound.
    """

    least: float
    clamps: bool = False

    def __call__(self, variance: Tensor) -> Tensor:
        return variance.clamp(min=self.least) if self.clamps else variance + self.least


def fit_gaussians(votes: Tensor, weights: Tensor, floor: Floor) -> Gaussians:
    """Weighted mean and variance of the votes for each receiver.

    S_r = sum_s w_rs,   mu_r = sum_s w_rs V_rs / S_r,   var_rh = sum_s w_rs (V_rsh - mu_rh)^2 / S_r + floor

    Shapes: votes (batch, receivers, senders, pose), weights (batch, receivers, senders).
    """
    total = weights.sum(-1, keepdim=True)
    share = (weights / total.clamp(min=EMPTY)).unsqueeze(-2)
    mean = share @ votes
    # The rounding error of the mean, which matters beside a small floor if all votes are equal. It has no gradient.
    rest = torch.where(total > EMPTY, (share @ (votes - mean)).squeeze(-2), 0).detach()
    mean = mean.squeeze(-2) + rest
    variance = (share @ (votes - mean.unsqueeze(-2)).square()).squeeze(-2)
    return Gaussians(mean, floor(variance))


def log_density(votes: Tensor, fitted: Gaussians) -> Tensor:
    """log N(V_rs; mu_r, var_r) of each vote: (batch, receivers, senders)."""
    mean, variance = fitted.mean.unsqueeze(-2), fitted.variance.unsqueeze(-2)
    exponents = (votes - mean).square() / variance + (2 * math.pi * variance).log()
    return (exponents.sum(-1) / -2).clamp(min=LEAST_FIT)
