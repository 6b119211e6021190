"""Draws the angle between a von Mises-Fisher sample and its mean.

Its density is proportional to exp(kappa cos a) sin(a)^(d-2) on [0, pi].
"""

import torch
from torch import Tensor

from mereo.errors import MereoError

_MOST_PROPOSALS = 1000


def draw_angle(kappa: Tensor, dimension: int) -> Tensor:
    """Angles in float64, for d of at least 2: in closed form for d = 3, else by Wood's rejection.

    Only rejected samples are drawn again; more than six in ten proposals are accepted. Everything is computed with
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
