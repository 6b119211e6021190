"""The generative capsule model: assigns each point to a part of an object and infers the pose of each object, in closed
form.

Source: Nazabal, Williams 2021, arXiv:2103.06676 and the authors' code.
Cost: of an update, slots * parts distances and one inverse a chain and object; all images and restarts together.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from mereo.errors import check_choice, check_not_negative, check_positive
from papers.constellations.sinkhorn import log_sinkhorn

CLUTTER_DENSITY = 1 / 4
"""Of a point that belongs to no object: uniform in [-1, 1] x [-1, 1]."""


class Update(NamedTuple):
    """The state after one update; a chain is one image from one start.

    Attributes:
        responsibilities (chains, slots, columns): a column for each part, then those for clutter.
        mean (chains, objects, pose), pose_precision (chains, objects, pose, pose): q(y_k).
        bound (chains,): the evidence lower bound.
    """

    responsibilities: Tensor
    mean: Tensor
    pose_precision: Tensor
    bound: Tensor


@dataclass(frozen=True)
class GenerativeCapsuleModel:
    """Points are parts of objects with unknown poses: x_m ~ N(F_n y_k, I / precision), n a part of object k.

    y_k ~ N(mu_0, I / prior_precision). The assignment z of points to parts is one of

        doubly_stochastic   a permutation, all equally likely: a part makes one point at most. Its posterior is
                            approximated by Sinkhorn's normalisation, so that the bound is not strictly one.
        mixture             each point for itself, with proportions pi ~ Dirichlet(1).

    q(y_k) = N(mu_k, Lambda_k^-1):  Lambda_k = Lambda_0 + precision sum_mn r_mn F_n^T F_n
                                    mu_k = Lambda_k^-1 (Lambda_0 mu_0 + precision sum_mn r_mn F_n^T x_m)
    e_mn = |x_m - F_n mu_k|^2 + tr(F_n^T F_n Lambda_k^-1)
    r    = Sinkhorn(-precision e / 2)     or softmax_n(E log pi_n - precision e_mn / 2)

    Attributes:
        basis (parts, 2, pose): F_n, see `papers.common.constellations`.
        owner (parts,): the object of each part; every object has one.
        assignment: "doubly_stochastic" or "mixture".
        clutter: how many points may belong to no object, for `doubly_stochastic`; above 0, `mixture` has one more
            component for them. Such a point is uniform in [-1, 1] x [-1, 1].
        prior_precision: of every entry of a pose.
        prior_mean: mu_0 of every object: its numbers, whose first two are the translation; "zero"; or "points", which
            is the mean of the points of each image with the rest 0, as in the authors' code.
        rounds: of Sinkhorn's normalisation in an update. Clutter needs more than two, about five: before, its columns
            take more than a point each.

    Reference: arXiv:2103.06676, section 3.
    """

    basis: Tensor
    owner: Tensor
    assignment: str = "doubly_stochastic"
    clutter: int = 0
    prior_precision: float = 1.0
    rounds: int = 2
    prior_mean: str | tuple[float, ...] = "zero"

    def __post_init__(self) -> None:
        check_choice("assignment", self.assignment, ("doubly_stochastic", "mixture"))
        check_positive(prior_precision=self.prior_precision, rounds=self.rounds)
        check_not_negative(clutter=self.clutter)
        if isinstance(self.prior_mean, str):
            check_choice("prior_mean", self.prior_mean, ("zero", "points"))

    @property
    def objects(self) -> int:
        """How many objects there are."""
        return int(self.owner.max()) + 1

    @property
    def columns(self) -> int:
        """The possible assignments of a point: one of the parts, or clutter."""
        exclusive = self.assignment == "doubly_stochastic"
        return len(self.owner) + (self.clutter if exclusive else min(self.clutter, 1))

    def _of_object(self, x: Tensor) -> Tensor:
        """Sums over the parts of each object: (..., parts, a) -> (..., objects, a)."""
        members = one_hot(self.owner, self.objects).to(x.dtype)
        return members.T @ x

    def prior_means(self, points: Tensor, mask: Tensor) -> Tensor:
        """mu_0 of the objects of each image: (chains, slots, 2), bool (chains, slots) -> (chains, pose)."""
        means = points.new_zeros(len(points), self.basis.shape[-1])
        if self.prior_mean == "points":
            there = mask.unsqueeze(-1)
            means[:, :2] = points.masked_fill(~there, 0).sum(1) / there.sum(1).clamp(min=1)
        elif not isinstance(self.prior_mean, str):
            means = means + points.new_tensor(self.prior_mean)
        return means

    def poses(
        self, points: Tensor, responsibilities: Tensor, precision: Tensor, prior: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """q(y_k), given the assignments.

        Args:
            prior: mu_0 of each chain, see `prior_means`; None: 0.

        Shapes: points (chains, slots, 2), responsibilities (chains, slots, columns), precision (chains,), prior
            (chains, pose) -> mean (chains, objects, pose), precision (chains, objects, pose, pose).
        """
        pose = self.basis.shape[-1]
        r = responsibilities[..., : len(self.owner)] * precision[:, None, None]
        squares = (self.basis.transpose(-1, -2) @ self.basis).flatten(1)
        eye = self.prior_precision * torch.eye(pose, dtype=r.dtype, device=r.device)
        total = eye + self._of_object(r.sum(1).unsqueeze(-1) * squares).unflatten(-1, (pose, pose))
        pulled = torch.einsum("bnd,nde->bne", r.transpose(1, 2) @ points, self.basis)
        wanted = self._of_object(pulled)
        if prior is not None:
            wanted = wanted + self.prior_precision * prior.unsqueeze(1)
        return torch.linalg.solve(total, wanted), total

    def log_density(self, points: Tensor, mean: Tensor, pose_precision: Tensor, precision: Tensor) -> Tensor:
        """E_q log p(x_m | the point is n): (chains, slots, columns)."""
        covariance = torch.linalg.inv(pose_precision)[:, self.owner]
        places = (self.basis @ mean[:, self.owner].unsqueeze(-1)).squeeze(-1)
        spread = torch.einsum("nde,bnef,ndf->bn", self.basis, covariance, self.basis)
        errors = (points.unsqueeze(2) - places.unsqueeze(1)).square().sum(-1) + spread.unsqueeze(1)
        precision = precision[:, None, None]
        parts = precision.log() - math.log(2 * math.pi) - precision / 2 * errors
        return pad(parts, (0, self.columns - len(self.owner)), value=math.log(CLUTTER_DENSITY))

    def assign(
        self, log_density: Tensor, responsibilities: Tensor, mask: Tensor, precision: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The new responsibilities, (chains, slots, columns), and - KL(z) [- KL(pi)], (chains,)."""
        if self.assignment == "mixture":
            return self._mix(log_density, responsibilities, mask)
        return self._match(log_density, mask, precision)

    def _match(self, log_density: Tensor, mask: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
        slots, columns = log_density.shape[1:]
        prior = -math.log(columns)
        # In the limit only ratios within a row matter; before it a row's size does too, and 0 is a perfect fit.
        fits = log_density - (precision / (2 * math.pi)).log()[:, None, None]
        # Absent points and parts that nothing shows meet in rows that fit everything alike.
        rows = pad(fits.masked_fill(~mask.unsqueeze(-1), 0), (0, 0, 0, columns - slots)) + prior
        log_r = log_sinkhorn(rows, self.rounds)
        r = log_r.exp()
        return r[:, :slots] * mask.unsqueeze(-1), (r * (prior - log_r)).sum((1, 2))

    def _mix(self, log_density: Tensor, responsibilities: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        alpha = 1 + responsibilities.sum(1)
        total = alpha.sum(-1)
        log_pi = alpha.digamma() - total.digamma().unsqueeze(-1)
        log_r = (log_density + log_pi.unsqueeze(1)).log_softmax(-1)
        r = log_r.exp() * mask.unsqueeze(-1)
        pi = ((1 - alpha) * log_pi + alpha.lgamma()).sum(-1) - total.lgamma() + math.lgamma(alpha.shape[-1])
        return r, (r * (log_pi.unsqueeze(1) - log_r)).sum((1, 2)) + pi

    def update(self, points: Tensor, mask: Tensor, responsibilities: Tensor, precision: Tensor) -> Update:
        """One sweep: the poses given the responsibilities, then the responsibilities given the poses.

        Shapes: points (chains, slots, 2), mask (chains, slots), responsibilities (chains, slots, columns), precision
            (chains,); see `Update`.
        """
        prior = self.prior_means(points, mask)
        mean, total = self.poses(points, responsibilities, precision, prior)
        log_density = self.log_density(points, mean, total, precision)
        r, divergence = self.assign(log_density, responsibilities, mask, precision)
        scale, pose = self.prior_precision, mean.shape[-1]
        poses = pose * (1 + math.log(scale)) - scale * (
            (mean - prior.unsqueeze(1)).square().sum(-1) + torch.linalg.inv(total).diagonal(dim1=-2, dim2=-1).sum(-1)
        )
        poses = (poses - torch.linalg.slogdet(total).logabsdet).sum(-1) / 2
        return Update(r, mean, total, (r * log_density).sum((1, 2)) + poses + divergence)

    def single_point(self, responsibilities: Tensor) -> Tensor:
        """Whether some object explains only a single point: (chains,)."""
        r = responsibilities[..., : len(self.owner)].transpose(1, 2)
        sure = self._of_object((r.amax(-1, keepdim=True) > 0.9).to(r.dtype)) > 0
        return (sure & (self._of_object(r.sum(-1, keepdim=True)) < 2)).any(1).squeeze(-1)
