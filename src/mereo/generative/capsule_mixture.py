"""A capsule as a mixture: Gaussian around what each parent predicts, mixed by von Mises-Fisher weights.

Source: Kiefer, Millidge, Tschantz, Buckley 2022, arXiv:2209.02567, equations 7 and 8.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from mereo.core.squash import accumulation_type, lengths
from mereo.errors import UsageError, check_choice
from mereo.generative.bessel import log_vmf_normaliser
from mereo.generative.von_mises_fisher import VonMisesFisher, broadcasts

Mixing = Literal["log", "literal", "constant"]
MIXINGS = ("log", "literal", "constant")
_SHORT = 1e-6
"""A prediction or a pose shorter than this has no direction: its von Mises-Fisher factor is uniform."""
_TOLERANCE = 1e-3
_FARTHEST = 1e30
"""Exponents of the Gaussian end here, so that a child far from all parents still has responsibilities."""


class MixtureSample(NamedTuple):
    """A sample of `CapsuleMixture.sample`.

    Attributes:
        poses: (..., m, d).
        directions: directions by which parents were chosen, or drawn with the poses, (..., m, d).
        parents: which parent predicted the pose, int64 (..., m).
    """

    poses: Tensor
    directions: Tensor
    parents: Tensor


def unit(x: Tensor) -> tuple[Tensor, Tensor]:
    """Directions (..., d), 0 for a vector of length 0, and whether there is a direction, bool (...)."""
    scale = x.detach().abs().amax(-1, keepdim=True).clamp(min=1)  # squares of what is left stay finite
    length = lengths(x / scale, keepdim=True)
    real = length * scale > _SHORT
    return torch.where(real, x / scale / length, torch.zeros_like(x)), real.squeeze(-1)


class CapsuleMixture:
    """The density of child poses V_i given what each parent predicts for them, U_ij.

    log p(V_i | D_i) = logsumexp_j [log pi_ij(D_i) + log N(V_i; U_ij, sigma_ij^2 I)],   D_i a direction, of length 1
    pi_i = softmax_j [log rho_ij + log vMF(D_i; U_ij / |U_ij|, kappa_ij)]               mixing "log"
    pi_i = softmax_j [vMF(D_i; U_ij / |U_ij|, kappa_ij)]                                mixing "literal", as printed
    pi_i = rho_i                                                                        mixing "constant"

    Args:
        predictions: U, what parent j predicts for child i.
        sigma: standard deviation of a coordinate, above 0.
        kappa: concentration, at least 0.
        log_prior: log rho up to a constant; -inf for a parent that is absent; None for equal ones.
        mixing: "log", "literal" or "constant".

    Shapes: predictions (..., m, n, d); sigma, kappa, log_prior broadcastable to (..., m, n), m children, n parents.
        Half precision is computed, and returned, in float32.

    Raises UsageError for arguments outside of their range, and for a child whose parents are all absent.

    The paper evaluates pi at D = V / |V|. Then p does not integrate to one over V: pi depends on the generated pose. It
    does when the direction is given, as `directions` of `log_prob`: a parent emits a pose and, independently, a
    direction, and p(V | D) is the first given the second. `normalised` states which case it is.

    Deviates: a prediction or pose without length has no direction, and the factor is uniform for it.

    Reference: arXiv:2209.02567, eq. 7 (one child); their sum over children is eq. 8.
    """

    def __init__(
        self,
        predictions: Tensor,
        sigma: Tensor | float,
        kappa: Tensor | float,
        log_prior: Tensor | None = None,
        *,
        mixing: Mixing = "log",
    ) -> None:
        check_choice("mixing", mixing, MIXINGS)
        if predictions.dim() < 3 or predictions.shape[-1] < 1 or not predictions.dtype.is_floating_point:
            raise UsageError(
                f"predictions has shape {tuple(predictions.shape)} and type {predictions.dtype}; it must be floating"
                " point and (..., children, parents, d)."
            )
        predictions, shape = predictions.to(accumulation_type(predictions)), predictions.shape[:-1]
        self.predictions, self.mixing, self.dimension = predictions, mixing, predictions.shape[-1]
        self.sigma = _spread("sigma", sigma, predictions, shape)
        self.kappa = _spread("kappa", kappa, predictions, shape)
        bad = ~((self.sigma > 0) & self.sigma.isfinite())
        if bad.any():
            raise UsageError(f"sigma has a value of {self.sigma[bad][0].item()}; it must be finite and above 0.")
        bad = ~((self.kappa >= 0) & self.kappa.isfinite())
        if bad.any():
            raise UsageError(f"kappa has a value of {self.kappa[bad][0].item()}; it must be finite and at least 0.")
        if not predictions.isfinite().all():
            raise UsageError("predictions has values that are infinite or NaN; they must be finite.")
        prior = _spread("log_prior", 0.0 if log_prior is None else log_prior, predictions, shape)
        if prior.isnan().any() or (prior == torch.inf).any() or (prior == -torch.inf).all(-1).any():
            raise UsageError(
                "log_prior is NaN, +inf, or -inf for all parents of a child; at least one parent must be possible."
            )
        self.log_prior = prior.log_softmax(-1)
        self._present = self.log_prior > -torch.inf
        self._directions, self._directed = unit(predictions)

    def normalised(self, *, directions_given: bool) -> bool:
        """Whether `log_prob` is the log of a density that integrates to one over the poses."""
        return directions_given or self.mixing == "constant"

    def log_mixing(self, directions: Tensor) -> Tensor:
        """log pi: which parent may have caused a child, from its direction only.

        Shapes: directions (..., m, d), of length 1, or 0 without a direction -> (..., m, n).
        """
        self._check("directions", directions)
        length = directions.detach().norm(dim=-1)
        bad = ((length - 1).abs() > _TOLERANCE) & (length > 0)
        if bad.any():
            raise UsageError(
                f"directions has a row of length {length[bad][0].item():.6g}; it must be 1, or 0 for none."
            )
        return self._log_mixing(directions.to(self.predictions.dtype))

    def _log_mixing(self, directions: Tensor) -> Tensor:
        if self.mixing == "constant":
            return self.log_prior.expand(*directions.shape[:-1], -1)
        cosine = (self._directions * directions.unsqueeze(-2)).sum(-1)
        density = log_vmf_normaliser(self.dimension, self.kappa) + self.kappa * cosine
        uniform = log_vmf_normaliser(self.dimension, torch.zeros_like(self.kappa))
        directed = self._directed & (directions != 0).any(-1, keepdim=True)
        density = torch.where(directed, density, uniform)
        if self.mixing == "log":
            return (self.log_prior + density).log_softmax(-1)
        largest = math.log(torch.finfo(density.dtype).max) - 1
        scores = density.clamp(max=largest).exp()
        return scores.masked_fill(~self._present, -torch.inf).log_softmax(-1)

    def log_prob(self, poses: Tensor, directions: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """log p(V_i | D_i) of every child; their sum is the layer's.

        Args:
            directions: D, of length 1; the poses' own when None, see `normalised`.
            mask: bool, True = the child is present; the others get 0.

        Shapes: poses, directions (..., m, d), mask (..., m) -> (..., m).
        """
        terms = self._log_joint(poses, directions).logsumexp(-1)
        if mask is not None and (mask.dtype != torch.bool or not broadcasts(mask.shape, terms.shape)):
            raise UsageError(
                f"mask has shape {tuple(mask.shape)} and type {mask.dtype}; it must be bool and broadcast to"
                f" {tuple(terms.shape)}."
            )
        return terms if mask is None else terms.masked_fill(~mask, 0)

    def responsibilities(self, poses: Tensor, directions: Tensor | None = None) -> Tensor:
        """P(child i came from parent j | its pose and direction): (..., m, d) -> (..., m, n)."""
        return self._log_joint(poses, directions).softmax(-1)

    def mean(self, directions: Tensor) -> Tensor:
        """E[V | D] = sum_j pi_ij(D) U_ij, which is one step of top-down attention: (..., m, d) -> (..., m, d)."""
        return (self.log_mixing(directions).exp().unsqueeze(-1) * self.predictions).sum(-2)

    def sample(self, directions: Tensor | None = None) -> MixtureSample:
        """Draw poses.

        Without directions from the top: a parent by rho, then its pose and its direction. With directions: a parent by
        pi(D), then its pose.
        """
        with torch.no_grad():
            chances = self.log_prior if directions is None else self.log_mixing(directions)
            parents = torch.distributions.Categorical(logits=chances, validate_args=False).sample()
            index = parents.unsqueeze(-1)
            means = self._of(self.predictions, index)
            poses = means + self.sigma.expand_as(chances).gather(-1, index) * torch.randn_like(means)
            if directions is None:
                first = torch.nn.functional.one_hot(parents.new_zeros(1), self.dimension).to(means)
                given = self._directed.expand_as(chances).gather(-1, index)
                mean = torch.where(given, self._of(self._directions, index), first)
                kappa = self.kappa.expand_as(chances).gather(-1, index).squeeze(-1) * given.squeeze(-1)
                directions = VonMisesFisher(mean, kappa, validate_args=False).sample()
            return MixtureSample(poses, directions, parents)

    @staticmethod
    def _of(values: Tensor, index: Tensor) -> Tensor:
        """values (..., m, n, d) at the parent of every child: (..., m, d)."""
        values = values.expand(*index.shape[:-1], *values.shape[-2:])
        return values.gather(-2, index.unsqueeze(-1).expand(*index.shape[:-1], 1, values.shape[-1])).squeeze(-2)

    def _log_joint(self, poses: Tensor, directions: Tensor | None) -> Tensor:
        self._check("poses", poses)
        poses, variance = poses.to(self.predictions.dtype), self.sigma**2
        distance = (poses.unsqueeze(-2) - self.predictions).square().sum(-1)
        normal = -(distance / (2 * variance)).clamp(max=_FARTHEST) - self.dimension / 2 * (2 * math.pi * variance).log()
        return normal + (self._log_mixing(unit(poses)[0]) if directions is None else self.log_mixing(directions))

    def _check(self, argument: str, value: Tensor) -> None:
        *batch, children, _, d = self.predictions.shape
        if value.shape[-2:] != (children, d) or not broadcasts(value.shape[:-2], torch.Size(batch)):
            wanted = (*batch, children, d)
            raise UsageError(f"{argument} has shape {tuple(value.shape)}, which does not broadcast against {wanted}.")
        if not value.isfinite().all():
            raise UsageError(f"{argument} has values that are infinite or NaN; they must be finite.")


def _spread(argument: str, value: Tensor | float, like: Tensor, shape: torch.Size) -> Tensor:
    value = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    try:
        return value.broadcast_to(shape)
    except RuntimeError:
        raise UsageError(
            f"{argument} has shape {tuple(value.shape)}, which does not broadcast to (..., children, parents) ="
            f" {tuple(shape)}."
        ) from None
