"""The Bessel functions of directional statistics, in log space and differentiable twice.

The von Mises-Fisher density in R^d has the normaliser log C_d(k) = log C_d(0) - g(k), with nu = d/2 - 1 and

    g(k) = log [ Gamma(nu + 1) (k/2)^-nu I_nu(k) ],    g(0) = 0,    g' = A = I_{nu+1}(k) / I_nu(k),
    A'   = 1 - A^2 - (2 nu + 1) A / k,

and A is the mean length of a sample's projection. Neither g nor A / k has anything special at zero, so nothing here
divides by k. Both come from expansions in the reciprocal order, taken at an order of at least 18 and brought down by

    q_mu = 2 (mu + 1) I_{mu+1} / (k I_mu),    q_{mu-1} = 1 / (1 + q_mu k^2 / (4 mu (mu + 1))),
    g_mu = g_{mu+1} - log q_mu.

Source: Debye's uniform expansion (Abramowitz and Stegun 9.7.7); the expansion of A solves its differential equation
term by term. Everything is float64 inside. Cost: about a tenth of a microsecond a value.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy.typing as npt
import torch
from numpy.polynomial import Polynomial
from torch import Tensor

from mereo.core.kernels.kept import kept
from mereo.core.kernels.transforms import nested_forward_mode, transformed
from mereo.errors import UsageError

_EXACT = (18, 10)
"""Least order and number of terms: errors below 1e-13."""
_SINGLE = (8, 6)
"""The same for float32: errors below 1e-7."""
_BLOCK = 8192
"""Values that are computed together, so that they stay in the cache."""
_LARGE = 32.0
"""From this argument on the expansion of A needs no large order."""


@kept()
def _debye_terms() -> Tensor:
    """u_1, u_2 ...: u_{r+1} = p^2 (1 - p^2) u_r' / 2 + integral_0^p (1 - 5 x^2) u_r dx / 8.

    u_r is p^r times a polynomial in p^2, whose coefficients these are.
    """
    u = [Polynomial([1.0])]
    for _ in range(_EXACT[1]):
        u.append(Polynomial([0, 0, 0.5, 0, -0.5]) * u[-1].deriv() + (Polynomial([0.125, 0, -0.625]) * u[-1]).integ())
    return _table([terms.coef[r::2] for r, terms in enumerate(u[1:], start=1)])


@kept()
def _ratio_terms() -> Tensor:
    """P_1, P_2 ... as coefficients in t, of A = k / (s + w) (1 + sum_r P_r(t) / s^r), s^2 = k^2 + w^2, t = w / s.

    2 P_{r+1} = -t P_r + (1 - t^2) (t P_r' + r P_r) - (1 - t) sum_{i+j=r+1} P_i P_j,  with w = nu + 1/2 and P_0 = 1.
    """
    t = Polynomial([0.0, 1.0])
    p = [Polynomial([1.0])]
    for r in range(_EXACT[1]):
        squares = sum((p[i] * p[r + 1 - i] for i in range(1, r + 1)), Polynomial([0.0]))
        p.append((-t * p[r] + (1 - t**2) * (t * p[r].deriv() + r * p[r]) - (1 - t) * squares) / 2)
    return _table([terms.coef for terms in p[1:]])


def _powers(x: Tensor, count: int) -> Tensor:
    """1, x, x^2 ...: (count, n), by doubling."""
    powers = x.new_empty(count, x.numel())
    powers[0] = 1
    powers[1] = x
    known = 2
    while known < count:
        more = min(known - 1, count - known)
        torch.mul(powers[1 : 1 + more], powers[known - 1], out=powers[known : known + more])
        known += more
    return powers


def _series(terms: Tensor, rows: int, columns: int, inner: Tensor, outer: Tensor) -> Tensor:
    """sum_r terms_r(inner) outer^r, r from 1 to `rows`, for vectors."""
    coefficients = terms[:rows, :columns].to(inner)
    return (coefficients @ _powers(inner, columns)).mul_(_powers(outer, rows)).sum(0).mul_(outer)


def _table(polynomials: Sequence[npt.NDArray[Any]]) -> Tensor:
    """Their coefficients, a row each."""
    width = max(map(len, polynomials))
    return torch.tensor([[*p, *[0.0] * (width - len(p))] for p in polynomials], dtype=torch.float64)


def _leading(order: float, k: Tensor, terms: int) -> tuple[Tensor, Tensor, Tensor]:
    """w + s, s, and sum_r P_r / s^r, of which A = k / (s + w) (1 + the sum)."""
    w = order + 0.5
    s = torch.hypot(k, torch.full_like(k, w))
    return s + w, s, _series(_ratio_terms(), terms, 2 * terms, w / s, 1 / s)


def _growth_and_ratio(
    order: float, k: Tensor, *, growth: bool, level: tuple[int, int] = _EXACT
) -> tuple[Tensor | None, Tensor]:
    """g and q at `order` for a vector k; g only if it is asked for."""
    least, terms = level
    steps = max(0, math.ceil(least - order))
    top = order + steps
    stirling = math.lgamma(top + 1) - (top + 0.5) * math.log(top) + top - 0.5 * math.log(2 * math.pi)
    below, _, rest = _leading(top, k, terms)
    q = (1 + rest).mul_(2 * (top + 1)).div_(below)
    one, factor = torch.ones_like(k), k.clamp(min=1)  # which keeps the product of all q near 1
    product = one.clone()
    for i in range(steps):
        mu = top - i
        torch.addcmul(one, q * k, k, value=1 / (4 * mu * (mu + 1)), out=q).reciprocal_()
        if growth:
            product.mul_(q).mul_(factor)
    q.masked_fill_(k == math.inf, 0)
    if not growth:
        return None, q
    z = k / top
    root = torch.hypot(z, one)
    p = 1 / root
    half = z * (z / (2 + 2 * root))  # (root - 1) / 2, without the difference
    g = top * (2 * half - half.log1p()) - root.log() / 2 + stirling
    g += _series(_debye_terms(), terms, terms + 1, p.square(), p / top).log1p_()
    g.sub_(product.log_()).add_(factor.log_(), alpha=steps)
    return g.masked_fill_(k == math.inf, math.inf), q


def _joined(blocks: Sequence[Tensor]) -> Tensor:
    return blocks[0] if len(blocks) == 1 else torch.cat(tuple(blocks))


def _each(function: Callable[[Tensor], Tensor], k: Tensor) -> Tensor:
    """A function of every entry, in float64."""
    flat = k.detach().to(torch.float64).flatten()
    return _joined([function(block) for block in flat.split(_BLOCK)]).reshape(k.shape).to(k.dtype)


def _ratio_slope(order: float, k: Tensor) -> Tensor:
    """A' without the cancellation of 1 - A^2 - (2 nu + 1) A / k at large k."""
    _, q = _growth_and_ratio(order, k, growth=False)
    share = q / (2 * (order + 1))
    near = 1 - (share * k).square() - (2 * order + 1) * share
    below, s, a = _leading(order, k.clamp(min=_LARGE), _EXACT[1])
    first = k.clamp(min=_LARGE) / below
    far = -first * a * (2 * s / k.clamp(min=_LARGE) + first * a)
    return torch.where(k < _LARGE, near, far)


# Operators of their own: a compiled caller sees neither the blocks nor the tables of coefficients.
@torch.library.custom_op("mereo::bessel_ratio_slope", mutates_args=())
def _slope_of_ratio(k: Tensor, order: float) -> Tensor:
    """A'(k), which has no derivative here."""
    return _each(lambda x: _ratio_slope(order, x), k)


@torch.library.custom_op("mereo::bessel_ratio", mutates_args=())
def _ratio(k: Tensor, order: float) -> Tensor:
    """A(k), with derivative A'(k)."""
    return _each(lambda x: _growth_and_ratio(order, x, growth=False)[1].mul_(x).div_(2 * (order + 1)), k)


@torch.library.custom_op("mereo::bessel_growth", mutates_args=())
def _growth(k: Tensor, order: float) -> Tensor:
    """g(k), with derivative A(k)."""
    return _each(lambda x: cast(Tensor, _growth_and_ratio(order, x, growth=True)[0]), k)


@torch.library.custom_op("mereo::vmf_normaliser_and_slope", mutates_args=())
def _normaliser_and_slope(kappa: Tensor, dimension: int) -> tuple[Tensor, Tensor]:
    """log C_d and A_d / kappa, which have no derivative here."""
    wide, level = (torch.float32, _SINGLE) if kappa.dtype == torch.float32 else (torch.float64, _EXACT)
    blocks = kappa.to(wide).flatten().split(_BLOCK)
    results = [_growth_and_ratio(dimension / 2 - 1, block, growth=True, level=level) for block in blocks]
    g, q = (_joined(cast(tuple[Tensor, ...], parts)) for parts in zip(*results, strict=True))
    both = g.neg_().add_(_log_uniform(dimension)), q.div_(dimension)
    return both[0].reshape(kappa.shape).to(kappa.dtype), both[1].reshape(kappa.shape).to(kappa.dtype)


def _save(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.order = inputs[1]


def _differentiable(operator: Any, derivative: Any) -> None:
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * derivative(ctx.saved_tensors[0], ctx.order), None

    operator.register_autograd(backward, setup_context=_save)


for _operator in (_slope_of_ratio, _ratio, _growth):
    _operator.register_fake(lambda k, order: k.new_empty(k.shape))
_normaliser_and_slope.register_fake(lambda k, dimension: (k.new_empty(k.shape), k.new_empty(k.shape)))
_differentiable(_ratio, _slope_of_ratio)
_differentiable(_growth, _ratio)
_OPERATORS = (_growth, _ratio, _slope_of_ratio)
"""Each is the derivative of the one before it."""


class _Transformable(torch.autograd.Function):
    """An operator for forward-mode derivatives and the transforms of `torch.func`, which ours have no rule for."""

    @staticmethod
    def forward(k: Tensor, order: float, level: int) -> Tensor:
        return _OPERATORS[level](k, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, int], output: Tensor) -> None:
        k, ctx.order, ctx.level = inputs
        ctx.save_for_backward(k)
        ctx.save_for_forward(k)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient * _derived(ctx.saved_tensors[0], ctx.order, ctx.level + 1), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        if nested_forward_mode():  # PyTorch loses the outer tangent of what a function saves
            raise UsageError(
                "forward mode inside forward mode is not supported for Bessel functions; take one of the two"
                " derivatives in reverse mode, as torch.func.hessian does."
            )
        return tangent * _derived(ctx.saved_tensors[0], ctx.order, ctx.level + 1)

    @staticmethod
    def vmap(info: Any, axes: tuple[Any, ...], k: Tensor, order: float, level: int) -> tuple[Tensor, Any]:
        return _derived(k, order, level), axes[0]  # every entry by itself


def _derived(k: Tensor, order: float, level: int) -> Tensor:
    """g, A or A' for level 0, 1 or 2, differentiable down to A'."""
    if level >= len(_OPERATORS):
        raise UsageError("the third derivative of the log of a Bessel function is not known here.")
    if transformed():
        return _Transformable.apply(k, order, level)
    return _OPERATORS[level](k, order)


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
    return _derived(x, float(order), 0) + torch.special.xlogy(torch.full_like(x, order), x / 2) - math.lgamma(order + 1)


def log_vmf_normaliser(dimension: int, kappa: Tensor) -> Tensor:
    """log C_d(kappa): the von Mises-Fisher density is exp(log C_d(kappa) + kappa <x, mean>) on the unit sphere of R^d.

    log C_d(k) = nu log k - (d/2) log(2 pi) - log I_nu(k), nu = d/2 - 1;  d/dk log C_d = -A_d(k)

    At kappa = 0 it is minus the log of the sphere's area; d = 1 is two points, -log(2 cosh kappa).

    Shapes: kappa >= 0, any -> the same.
    """
    _check(dimension, "kappa", kappa)
    return _log_uniform(dimension) - _derived(kappa, dimension / 2 - 1, 0)


def mean_resultant_length(dimension: int, kappa: Tensor) -> Tensor:
    """A_d(kappa) = I_{d/2}(kappa) / I_{d/2-1}(kappa): the mean of <x, mean> under the von Mises-Fisher density.

    Shapes: kappa >= 0, any -> the same, in [0, 1].
    """
    _check(dimension, "kappa", kappa)
    return _derived(kappa, dimension / 2 - 1, 1)


def log_vmf_normaliser_and_slope(dimension: int, kappa: Tensor) -> tuple[Tensor, Tensor]:
    """log C_d(kappa) and A_d(kappa) / kappa, 1/d at 0, together and without gradients.

    For float32 everything is float32 inside, with errors of its rounding and a few times the speed.

    Shapes: kappa >= 0, any -> the same, twice.
    """
    _check(dimension, "kappa", kappa)
    return _normaliser_and_slope(kappa.detach(), dimension)


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
    order = dimension / 2 - 1
    for _ in range(6):
        above = mean_resultant_length(dimension, kappa) - r
        kappa = (kappa - above / _slope_of_ratio(kappa, order)).clamp(min=0, max=largest)
        kappa = torch.maximum(kappa, least.clamp(max=largest))
    return kappa.to(length.dtype)
