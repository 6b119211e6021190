"""The von Mises-Fisher distribution: directions around a mean direction.

Source: Mardia and Jupp, Directional Statistics; sampling after Ulrich 1984 and Wood 1994. As the mixing weights of
capsules: arXiv:2209.02567, equation 7.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl
from torch.distributions.constraints import Constraint

from mereo.errors import UsageError
from mereo.generative.bessel import log_vmf_normaliser, mean_resultant_length
from mereo.generative.von_mises_fisher_angle import draw_angle

_TOLERANCE = 1e-3


class _UnitVectors(Constraint):
    """Vectors of length 1, to within a thousandth."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value.norm(dim=-1) - 1).abs() <= _TOLERANCE

    def __repr__(self) -> str:
        return "UnitVectors()"


unit_vectors = _UnitVectors()


def broadcasts(first: torch.Size, second: torch.Size) -> bool:
    """Whether the shapes broadcast against each other."""
    pairs = zip(reversed(first), reversed(second), strict=False)
    return all(a == b or 1 in (a, b) for a, b in pairs)


class VonMisesFisher(Distribution):
    """Directions x on the unit sphere of R^d with density C_d(kappa) exp(kappa <x, mean>).

    log C_d(k) = nu log k - (d/2) log(2 pi) - log I_nu(k),  nu = d/2 - 1;    E x = A_d(kappa) mean

    Args:
        mean: the mean direction, of length 1.
        kappa: the concentration, at least 0; 0 is the uniform distribution.
        validate_args: check the arguments here and the values of `log_prob`; False skips it, True by default.

    Shapes: mean (..., d), kappa (...), broadcast against each other; samples (..., d).

    Raises UsageError for a mean that is not of length 1 and a kappa that is negative, infinite or NaN.

    d = 1 is the two points +-1.
    """

    arg_constraints = {"mean": unit_vectors, "kappa": constraints.nonnegative}  # noqa: RUF012
    support = unit_vectors

    def __init__(self, mean: Tensor, kappa: Tensor | float, validate_args: bool | None = None) -> None:
        kappa = torch.as_tensor(kappa, dtype=mean.dtype, device=mean.device)
        if mean.dim() < 1 or mean.shape[-1] < 1:
            raise UsageError(f"mean has shape {tuple(mean.shape)}; it must be (..., d) with d of at least 1.")
        if not mean.dtype.is_floating_point:
            raise UsageError(f"mean has type {mean.dtype}; it must be a floating-point type.")
        if not broadcasts(mean.shape[:-1], kappa.shape):
            raise UsageError(
                f"kappa has shape {tuple(kappa.shape)}, which does not broadcast against the {tuple(mean.shape[:-1])}"
                " of mean without its last axis."
            )
        shape = torch.broadcast_shapes(mean.shape[:-1], kappa.shape)
        self.dimension = mean.shape[-1]
        self._mean, self.kappa = mean.expand(*shape, self.dimension), kappa.expand(shape)
        if validate_args is not False:
            self._check_arguments()
        super().__init__(shape, torch.Size([self.dimension]), validate_args=False)
        self._validate_args = validate_args is not False

    def _check_arguments(self) -> None:
        bad = ~((self.kappa >= 0) & self.kappa.isfinite())
        if bad.any():
            raise UsageError(f"kappa has a value of {self.kappa[bad][0].item()}; it must be finite and at least 0.")
        length = self._mean.detach().norm(dim=-1)
        bad = ~((length - 1).abs() <= _TOLERANCE)
        if bad.any():
            raise UsageError(
                f"mean has a row of length {length[bad][0].item():.6g}; directions must have length 1: divide by it."
            )

    @property
    def mean_direction(self) -> Tensor:
        """The argument `mean`: (..., d)."""
        return self._mean

    @property
    def mode(self) -> Tensor:
        """Where the density is largest: (..., d)."""
        return self._mean

    @property
    def mean(self) -> Tensor:
        """E x = A_d(kappa) times the mean direction: (..., d), shorter than 1."""
        return self.mean_resultant_length.unsqueeze(-1) * self._mean

    @property
    def mean_resultant_length(self) -> Tensor:
        """A_d(kappa), the mean of <x, mean direction>: (...)."""
        return mean_resultant_length(self.dimension, self.kappa)

    @property
    def variance(self) -> Tensor:
        """The variance of each coordinate: (..., d). Along the mean A', across it A / kappa (1/d at kappa 0)."""
        along = self._mean.square()
        kappa = self.kappa.double()  # A' is a small difference where kappa is large
        a = mean_resultant_length(self.dimension, kappa)
        across = torch.where(kappa > 0, a / kappa.clamp(min=1e-300), torch.full_like(a, 1 / self.dimension))
        spread = (1 - a.square() - (self.dimension - 1) * across).clamp(min=0)
        return (spread.unsqueeze(-1) * along + across.unsqueeze(-1) * (1 - along)).to(along.dtype)

    @property
    def log_normaliser(self) -> Tensor:
        """log C_d(kappa): (...)."""
        return log_vmf_normaliser(self.dimension, self.kappa)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "VonMisesFisher":
        """The same distribution with a larger batch."""
        shape = torch.Size(batch_shape)
        larger = VonMisesFisher(
            self._mean.expand(*shape, self.dimension), self.kappa.expand(shape), validate_args=False
        )
        larger._validate_args = self._validate_args
        return larger

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density with respect to the sphere's area.

        Shapes: value (..., d) of length 1 -> (...).
        """
        if value.shape[-1:] != self.event_shape or not broadcasts(value.shape[:-1], self.batch_shape):
            wanted = (*self.batch_shape, self.dimension)
            raise UsageError(f"value has shape {tuple(value.shape)}, which does not broadcast against {wanted}.")
        if self._validate_args:
            length = value.detach().norm(dim=-1)
            bad = ~((length - 1).abs() <= _TOLERANCE)
            if bad.any():
                raise UsageError(f"value has a row of length {length[bad][0].item():.6g}; directions have length 1.")
        return self.log_normaliser + self.kappa * (value * self._mean).sum(-1)

    def entropy(self) -> Tensor:
        """-log C_d(kappa) - kappa A_d(kappa): (...)."""
        return -self.log_normaliser - self.kappa * self.mean_resultant_length

    @torch.no_grad()
    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Samples (sample_shape, ..., d), without gradients."""
        shape = self._extended_shape(sample_shape)
        mean, kappa = self._mean.expand(shape), self.kappa.expand(shape[:-1])
        if self.dimension == 1:
            sign = torch.rand_like(kappa).log() < -torch.nn.functional.softplus(-2 * kappa)
            return torch.where(sign.unsqueeze(-1), mean, -mean)
        angle = draw_angle(kappa, self.dimension).to(kappa.dtype).unsqueeze(-1)
        across = torch.randn_like(mean)
        for _ in range(2):  # once leaves rounding where the draw is nearly along the mean
            across = across - (across * mean).sum(-1, keepdim=True) * mean
            across = across / across.norm(dim=-1, keepdim=True).clamp(min=1e-30)
        return angle.cos() * mean + angle.sin() * across

    def __repr__(self) -> str:
        return f"VonMisesFisher(dimension={self.dimension}, batch_shape={tuple(self.batch_shape)})"


@register_kl(VonMisesFisher, VonMisesFisher)  # type: ignore[untyped-decorator]
def _kl_vmf_vmf(p: VonMisesFisher, q: VonMisesFisher) -> Tensor:
    """log C(k1) - log C(k2) + A(k1) (k1 - k2 <mean1, mean2>), for each element of the batch."""
    if p.dimension != q.dimension:
        raise UsageError(f"the distributions live in dimensions {p.dimension} and {q.dimension}; they must agree.")
    cosine = (p.mean_direction * q.mean_direction).sum(-1)
    return p.log_normaliser - q.log_normaliser + p.mean_resultant_length * (p.kappa - q.kappa * cosine)
