"""The normaliser of von Mises and Fisher and its slope, for arrays of concentrations, compared with SciPy and PyTorch.

SciPy has the Bessel functions for any order and no gradients: they are added to it here as one would by hand.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mereo.bench.suite import Contender, Mode, Setting, Suite, UnavailableError, Workload
from mereo.generative.bessel import log_vmf_normaliser, log_vmf_normaliser_and_slope, mean_resultant_length

Both = tuple[Tensor, Tensor]
TAKES = "(kappa (numbers,), dimension) -> log C_d(kappa) and A_d(kappa), (numbers,) each"


def inputs(setting: Setting, mode: Mode) -> tuple[Any, ...]:
    """Concentrations from 0.1 to 1000, evenly in their logarithm, float64."""
    kappa = 10 ** (4 * torch.rand(setting.size("numbers"), dtype=torch.float64, device=setting.device) - 1)
    return kappa.requires_grad_(mode == "training"), setting.size("dimension")


def separate(kappa: Tensor, dimension: int) -> Both:
    """Each by its own function, differentiable."""
    return log_vmf_normaliser(dimension, kappa), mean_resultant_length(dimension, kappa)


def together(kappa: Tensor, dimension: int) -> Both:
    """Both from one expansion, without gradients."""
    log_normaliser, slope = log_vmf_normaliser_and_slope(dimension, kappa)
    return log_normaliser, slope * kappa


def by_torch(kappa: Tensor, dimension: int) -> Both:
    """PyTorch has the orders 0 and 1."""
    lower, upper = torch.special.i0e(kappa), torch.special.i1e(kappa)
    return -math.log(2 * math.pi) - lower.log() - kappa, upper / lower


class _ByIve(torch.autograd.Function):
    """Exponentially scaled Bessel functions, with the derivatives -A and 1 - A^2 - (d - 1) A / kappa."""

    @staticmethod
    def forward(ctx: Any, kappa: Tensor, dimension: int, ive: Callable[..., Any]) -> Both:
        k, nu = kappa.detach().cpu(), dimension / 2 - 1
        lower, upper = (torch.from_numpy(ive(order, k.numpy())) for order in (nu, nu + 1))
        length = (upper / lower).to(kappa)
        log_normaliser = nu * k.log() - dimension / 2 * math.log(2 * math.pi) - lower.log() - k
        ctx.save_for_backward(kappa, length)
        ctx.dimension = dimension
        return log_normaliser.to(kappa), length

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_normaliser: Tensor, of_length: Tensor) -> tuple[Tensor, None, None]:
        kappa, a = ctx.saved_tensors
        rising = 1 - a.square() - (ctx.dimension - 1) * a / kappa
        return of_length * rising - of_normaliser * a, None, None


def _by_scipy(mode: Mode) -> Workload:
    try:
        from scipy.special import ive
    except ImportError as error:
        raise UnavailableError("scipy is not installed") from error
    return Workload(lambda kappa, dimension: _ByIve.apply(kappa, dimension, ive))


def _single(function: Callable[[Tensor, int], Both]) -> Callable[[Tensor, int], Both]:
    return lambda kappa, dimension: function(kappa.float(), dimension)


def _without_gradients(function: Callable[[Tensor, int], Both]) -> Callable[[Mode], Workload]:
    def build(mode: Mode) -> Workload:
        if mode == "training":
            raise UnavailableError("has no gradients")
        return Workload(function)

    return build


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """Ours in both precisions, SciPy, and PyTorch where it has the orders: in the plane."""
    contenders = [
        Contender("separate", lambda mode: Workload(separate)),
        Contender("separate float32", lambda mode: Workload(_single(separate))),
        Contender("together", _without_gradients(together)),
        Contender("together float32", _without_gradients(_single(together))),
        Contender("scipy.special.ive", _by_scipy),
    ]
    if setting.size("dimension") == 2:
        contenders.append(Contender("torch.special", lambda mode: Workload(by_torch)))
    return tuple(contenders)


BESSEL = Suite(
    "bessel",
    "log C_d and A_d of the von Mises-Fisher density, with and without gradients, from a thousand to a million numbers",
    TAKES,
    {"numbers": 100_000, "dimension": 16},
    inputs,
    contenders,
    lambda setting, mode: None,
    sweeps={"numbers": (1_000, 100_000, 1_000_000), "dimension": (2, 16, 64)},
    quick={"numbers": 10_000},
    quick_sweeps={"numbers": (1_000, 10_000), "dimension": (2, 64)},
    memory=(),
)
