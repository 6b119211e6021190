"""The Bessel functions of directional statistics, in log space and differentiable.

The von Mises-Fisher density in R^d has the normaliser log C_d(k) = log C_d(0) - g(k), with nu = d/2 - 1 and

    g(k) = log [ Gamma(nu + 1) (k/2)^-nu I_nu(k) ],    g(0) = 0,    g' = A = I_{nu+1}(k) / I_nu(k),
    A'   = 1 - A^2 - (2 nu + 1) A / k,

and A is the mean length of a sample's projection. Neither g nor A / k has anything special at zero, so nothing here
divides by k. Both come from expansions in the reciprocal order, taken at an order of at least 18 and brought down by

    q_mu = 2 (mu + 1) I_{mu+1} / (k I_mu),    q_{mu-1} = 1 / (1 + q_mu k^2 / (4 mu (mu + 1))),
    g_mu = g_{mu+1} - log q_mu.

Source: Debye's uniform expansion (Abramowitz and Stegun 9.7.7); the expansion of A solves its differential equation
term by term. Everything is float64 inside, and autograd differentiates the expansions. SciPy's `ive`
overflows in many dimensions and has no derivatives. Cost: two tenths of a microsecond a value, and four times that
with its gradient.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt
import torch
from numpy.polynomial import Polynomial
from torch import Tensor

from mereo.core.kernels.transforms import transformed
from mereo.errors import UsageError

_LEVELS = {torch.float64: (18, 10), torch.float32: (8, 6)}
"""Least order and number of terms: errors below 1e-13 and 1e-7."""
_TERMS = 10
_BLOCK = 8192
"""Values that are computed together, so that they stay in the cache."""
_LARGE = 32.0
"""From this argument on the expansion of A needs no large order."""


def _table(polynomials: Sequence[npt.NDArray[Any]]) -> Tensor:
    """Their coefficients, a row each."""
    width = max(map(len, polynomials))
    return torch.tensor([[*p, *[0.0] * (width - len(p))] for p in polynomials], dtype=torch.float64)


def _debye_terms() -> Tensor:
    """u_1, u_2 ...: u_{r+1} = p^2 (1 - p^2) u_r' / 2 + integral_0^p (1 - 5 x^2) u_r dx / 8.

    u_r is p^r times a polynomial in p^2, whose coefficients these are.
    """
    u = [Polynomial([1.0])]
    for _ in range(_TERMS):
        u.append(Polynomial([0, 0, 0.5, 0, -0.5]) * u[-1].deriv() + (Polynomial([0.125, 0, -0.625]) * u[-1]).integ())
    return _table([terms.coef[r::2] for r, terms in enumerate(u[1:], start=1)])


def _ratio_terms() -> Tensor:
    """P_1, P_2 ... as coefficients in t, of A = k / (s + w) (1 + sum_r P_r(t) / s^r), s^2 = k^2 + w^2, t = w / s.

    2 P_{r+1} = -t P_r + (1 - t^2) (t P_r' + r P_r) - (1 - t) sum_{i+j=r+1} P_i P_j,  with w = nu + 1/2 and P_0 = 1.
    """
    t = Polynomial([0.0, 1.0])
    p = [Polynomial([1.0])]
    for r in range(_TERMS):
        squares = sum((p[i] * p[r + 1 - i] for i in range(1, r + 1)), Polynomial([0.0]))
        p.append((-t * p[r] + (1 - t**2) * (t * p[r].deriv() + r * p[r]) - (1 - t) * squares) / 2)
    return _table([terms.coef for terms in p[1:]])


_DEBYE, _RATIO = _debye_terms(), _ratio_terms()


def _powers(x: Tensor, first: int, count: int) -> Tensor:
    """x^first, x^(first + 1) ...: (count, n)."""
    powers = [torch.ones_like(x), x]
    while len(powers) < first + count:
        powers.append(powers[-1] * x)
    return torch.stack(powers[first : first + count])


def _series(terms: Tensor, rows: int, columns: int, inner: Tensor, outer: Tensor) -> Tensor:
    """sum_r terms_r(inner) outer^r, r from 1 to `rows`, for vectors."""
    return ((terms[:rows, :columns].to(inner) @ _powers(inner, 0, columns)) * _powers(outer, 1, rows)).sum(0)


def _leading(order: float, k: Tensor, terms: int) -> tuple[Tensor, Tensor, Tensor]:
    """w, s, and sum_r P_r / s^r, which give A = k / (s + w) (1 + the sum)."""
    w = torch.full_like(k, order + 0.5)
    s = torch.hypot(k, w)
    return w, s, _series(_RATIO, terms, 2 * terms, w / s, 1 / s)


def _growth_and_ratio(order: float, k: Tensor) -> tuple[Tensor, Tensor]:
    """g and q at `order` for a vector k, float64 or float32."""
    least, terms = _LEVELS[k.dtype]
    infinite, k = k == math.inf, k.clamp(max=torch.finfo(k.dtype).max / 2)
    steps = max(0, math.ceil(least - order))
    top = order + steps
    w, s, rest = _leading(top, k, terms)
    q = 2 * (top + 1) / (s + w) * (1 + rest)
    factor = k.clamp(min=1)  # which keeps the product of all q near 1
    product = torch.ones_like(k)
    for mu in (top - i for i in range(steps)):
        q = 1 / (1 + q * k / (4 * mu * (mu + 1)) * k)
        product = product * q * factor
    z = k / top
    root = torch.hypot(z, torch.ones_like(z))
    half = z * (z / (2 + 2 * root))  # (root - 1) / 2, without the difference
    stirling = math.lgamma(top + 1) - (top + 0.5) * math.log(top) + top - 0.5 * math.log(2 * math.pi)
    g = top * (2 * half - half.log1p()) - root.log() / 2 + stirling
    g = g + _series(_DEBYE, terms, terms + 1, 1 / root.square(), 1 / (root * top)).log1p()
    g = g - product.log() + steps * factor.log()
    return g.masked_fill(infinite, math.inf), q.masked_fill(infinite, 0)


def _ratio(order: float, k: Tensor) -> Tensor:
    """A, whose derivative keeps its digits at large k, where A = 1 - (w + w^2 / (s + k) - k sum) / (s + w)."""
    near = k.clamp(max=_LARGE) * _growth_and_ratio(order, k)[1] / (2 * (order + 1))
    large = k.clamp(_LARGE, 1e300)
    w, s, rest = _leading(order, large, _TERMS)
    far = 1 - (w + w * (w / (s + large)) - large * rest) / (s + w)
    return torch.where(k < _LARGE, near, far)


def _each(function: Callable[[Tensor], Tensor], k: Tensor, wide: torch.dtype = torch.float64) -> Tensor:
    """A function of every entry, computed in float64; the values of a function with several are its last axis."""
    flat = k.to(wide).flatten()
    blocks = [flat] if torch.compiler.is_compiling() else flat.split(_BLOCK)
    values = torch.cat([function(block) for block in blocks])
    return values.reshape((*k.shape, *values.shape[1:])).to(k.dtype)


def _growth(order: float, k: Tensor) -> Tensor:
    return _each(lambda x: _growth_and_ratio(order, x)[0], k)


def _check_type(argument: str, x: Tensor) -> None:
    if not x.dtype.is_floating_point:
        raise UsageError(f"{argument} has type {x.dtype}; it must be a floating-point type.")


def _check(dimension: int, argument: str, x: Tensor) -> None:
    if not isinstance(dimension, int) or dimension < 1:
        raise UsageError(f"dimension is {dimension!r}; it must be a whole number of at least 1.")
    _check_type(argument, x)


def _log_uniform(dimension: int) -> float:
    """log C_d(0), minus the log of the sphere's area."""
    return math.lgamma(dimension / 2) - math.log(2) - dimension / 2 * math.log(math.pi)


def log_bessel_i(order: float, x: Tensor) -> Tensor:
    """log I_order(x), the modified Bessel function of the first kind, for x >= 0.

    Args:
        order: at least -1/2; a number, not a tensor.

    Shapes: x any -> the same; -inf where I is 0, +inf where it is infinite (order below 0 at x = 0).
    """
    if not order >= -0.5:
        raise UsageError(f"order is {order!r}; it must be at least -0.5.")
    _check_type("x", x)
    if not transformed() and (x < 0).any():  # a transform has no values to look at
        raise UsageError(f"x has a value of {x.min().item()}; it must be at least 0.")
    return _growth(order, x) + torch.special.xlogy(torch.full_like(x, order), x / 2) - math.lgamma(order + 1)


def log_vmf_normaliser(dimension: int, kappa: Tensor) -> Tensor:
    """log C_d(kappa): the von Mises-Fisher density is exp(log C_d(kappa) + kappa <x, mean>) on the unit sphere of R^d.

    log C_d(k) = nu log k - (d/2) log(2 pi) - log I_nu(k), nu = d/2 - 1;  d/dk log C_d = -A_d(k)

    At kappa = 0 it is minus the log of the sphere's area; d = 1 is two points, -log(2 cosh kappa).

    Shapes: kappa >= 0, any -> the same.
    """
    _check(dimension, "kappa", kappa)
    return _log_uniform(dimension) - _growth(dimension / 2 - 1, kappa)


def mean_resultant_length(dimension: int, kappa: Tensor) -> Tensor:
    """A_d(kappa) = I_{d/2}(kappa) / I_{d/2-1}(kappa): the mean of <x, mean> under the von Mises-Fisher density.

    Shapes: kappa >= 0, any -> the same, in [0, 1].
    """
    _check(dimension, "kappa", kappa)
    return _each(lambda k: _ratio(dimension / 2 - 1, k), kappa)


def log_vmf_normaliser_and_slope(dimension: int, kappa: Tensor) -> tuple[Tensor, Tensor]:
    """log C_d(kappa) and A_d(kappa) / kappa, 1/d at 0, together and without gradients.

    For float32 everything is float32 inside, with errors of its rounding and a few times the speed.

    Shapes: kappa >= 0, any -> the same, twice.
    """
    _check(dimension, "kappa", kappa)
    wide = torch.float32 if kappa.dtype == torch.float32 else torch.float64
    with torch.no_grad():
        both = _each(lambda k: torch.stack(_growth_and_ratio(dimension / 2 - 1, k), -1), kappa, wide)
    return _log_uniform(dimension) - both[..., 0], both[..., 1] / dimension


def concentration(dimension: int, length: Tensor, *, largest: float = 1e5) -> Tensor:
    """The kappa with A_d(kappa) = length: Newton's method from r (d - r^2) / (1 - r^2); no gradient.

    Args:
        largest: kappa is at most this; a length of 1 has none.

    Shapes: length in [0, 1], any -> the same.
    """
    _check(dimension, "length", length)
    r = length.detach().to(torch.float64).clamp(0, 1)
    left = (1 - r.square()).clamp(min=torch.finfo(r.dtype).tiny)
    if dimension == 1:
        return torch.atanh(r).clamp(max=largest).to(length.dtype)
    least = (dimension - 1) * r / left  # A is below k / (w + s), which reaches r here
    kappa = (r * (dimension - r.square()) / left).clamp(max=largest)
    for _ in range(6):
        share = log_vmf_normaliser_and_slope(dimension, kappa)[1]
        slope = 1 - (share * kappa).square() - (dimension - 1) * share
        # Which loses its digits at large kappa, where it is (d - 1) / (2 kappa^2).
        slope = torch.maximum(slope, (dimension - 1) / (4 * (kappa.square() + dimension**2)))
        kappa = (kappa - (share * kappa - r) / slope).clamp(min=0, max=largest)
        kappa = torch.maximum(kappa, least.clamp(max=largest))
    return kappa.to(length.dtype)
