"""The angle between a von Mises-Fisher sample and its mean: drawn, and differentiated with respect to kappa.

Its density is proportional to exp(kappa cos a) sin(a)^(d-2) on [0, pi].
"""

import math

import torch
from numpy.polynomial.legendre import leggauss
from torch import Tensor

from mereo.errors import MereoError
from mereo.generative.bessel import mean_resultant_length

_MOST_PROPOSALS = 1000
_BLOCK = 4096
_NODES, _WEIGHTS = (torch.from_numpy(x) for x in leggauss(64))


def draw_angle(kappa: Tensor, dimension: int) -> Tensor:
    """Angles in float64, for d of at least 2: in closed form for d = 3, else by Wood's rejection.

    Only what was rejected is drawn again; more than six in ten proposals are accepted. Everything is computed with
    1 - cos, so that the small angles of a large kappa keep their digits.

    Shapes: kappa (...) -> (...).
    """
    k = kappa.detach().to(torch.float64).flatten()
    gap = _gap_in_space(k) if dimension == 3 else _gap_by_rejection(k, dimension)
    return (2 * (gap / 2).clamp(0, 1).sqrt().asin()).reshape(kappa.shape)


def _gap_in_space(k: Tensor) -> Tensor:
    """1 - cos for d = 3, by inverting the distribution function: -log(u + (1 - u) exp(-2 kappa)) / kappa."""
    u = torch.rand_like(k)
    safe = k.clamp(min=1e-6)
    return torch.where(k < 1e-6, 2 * u, -torch.log1p(u * torch.expm1(-2 * safe)) / safe)


def _gap_by_rejection(k: Tensor, dimension: int) -> Tensor:
    """1 - cos by Wood's envelope: w = (1 - (1 + b) z) / (1 - (1 - b) z), z ~ Beta((d-1)/2, (d-1)/2)."""
    m = dimension - 1
    b = m / (2 * k + torch.hypot(2 * k, torch.full_like(k, m)))
    top = 2 * b / (1 + b)  # 1 - x0, x0 = (1 - b) / (1 + b)
    shape = torch.full((2, 1), m / 2, dtype=torch.float64, device=k.device)
    gap, left = torch.empty_like(k), torch.arange(k.numel(), device=k.device)
    for _ in range(_MOST_PROPOSALS):
        if not left.numel():
            return gap
        gammas = torch.distributions.Gamma(shape.expand(2, left.numel()), 1.0, validate_args=False).sample()
        z, b_left, top_left = gammas[0] / gammas.sum(0), b[left], top[left]
        proposal = 2 * b_left * z / (1 - (1 - b_left) * z)
        # kappa (w - x0) + (d-1) log[(1 - x0 w) / (1 - x0^2)], with 1 - w and 1 - x0 in place of w and x0.
        rest = (top_left + proposal - top_left * proposal) / (top_left * (2 - top_left))
        accepted = k[left] * (top_left - proposal) + m * rest.log() >= torch.rand_like(z).log()
        gap[left[accepted]] = proposal[accepted]
        left = left[~accepted]
    raise MereoError(f"sampling in dimension {dimension} did not end after {_MOST_PROPOSALS} proposals.")


def angle_slope(kappa: Tensor, angle: Tensor, dimension: int) -> Tensor:
    """d angle / d kappa = -integral_0^angle p(x) (cos x - A) dx / p(angle): the distribution function keeps its value.

    Past the mode the integral from the angle to pi is taken instead, which is its negative: so the integrand never
    exceeds its value at the angle by much, and 64 nodes of Gauss and Legendre over twelve standard deviations suffice.

    Shapes: kappa (...), angle float64 (...) -> float64 (...).
    """
    k, a = (x.detach().to(torch.float64).flatten() for x in (kappa, angle))
    blocks = [_slope_of_block(*pair, dimension) for pair in zip(k.split(_BLOCK), a.split(_BLOCK), strict=True)]
    return torch.cat(blocks).reshape(angle.shape) if blocks else torch.empty_like(angle)


def _slope_of_block(k: Tensor, angle: Tensor, dimension: int) -> Tensor:
    power = dimension - 2
    # The mode: k sin^2 = (d - 2) cos.
    cosine = 2 * k / (power + torch.hypot(2 * k, torch.full_like(k, power))).clamp(min=1e-30)
    curvature = k * cosine + power / (1 - cosine.square()).clamp(min=1e-12)
    width = 12 * curvature.clamp(min=1e-12).rsqrt()
    before = angle.cos() > mean_resultant_length(dimension, k)
    low = torch.where(before, (angle - width).clamp(min=0), angle)
    high = torch.where(before, angle, torch.minimum(angle + width, torch.full_like(angle, math.pi)))
    half = ((high - low) / 2).unsqueeze(-1)
    x = low.unsqueeze(-1) + half * (1 + _NODES.to(k.device))
    there = angle.unsqueeze(-1)
    # cos x - cos angle without the difference of two numbers near 1.
    change = -2 * ((x + there) / 2).sin() * ((x - there) / 2).sin()
    log_ratio = k.unsqueeze(-1) * change
    if power:
        log_ratio = log_ratio + power * (x.sin().clamp(min=1e-300).log() - there.sin().clamp(min=1e-300).log())
    resultant = mean_resultant_length(dimension, k).unsqueeze(-1)
    integral = (half * _WEIGHTS.to(k.device) * log_ratio.exp() * (x.cos() - resultant)).sum(-1)
    return torch.where(before, -integral, integral)
