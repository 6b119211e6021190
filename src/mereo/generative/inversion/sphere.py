"""Parents that are directions: everything is conjugate, and a sweep is one pass of routing."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mereo.generative.bessel import log_vmf_normaliser, mean_resultant_length
from mereo.generative.inversion.problem import Children, Mixture, Statistics


@dataclass(frozen=True)
class SphereParents:
    """q(v_j) = von Mises-Fisher with natural parameter eta_j, for |v_j| = 1 and orthogonal T_ij.

    eta_j = eta0_j + sum_i r_ij T_ij^T (V_i / sigma_ij^2 + kappa_ij D_i),    E v_j = A_e(|eta_j|) eta_j / |eta_j|

    Attributes:
        natural: eta, (batch, parents, e).
        prior: eta0, broadcastable to it; 0 is uniform.
    """

    natural: Tensor
    prior: Tensor

    @property
    def mean(self) -> Tensor:
        """E v, shorter than 1: (batch, parents, e)."""
        kappa = self.natural.norm(dim=-1, keepdim=True)
        e = self.natural.shape[-1]
        share = torch.where(kappa > 0, mean_resultant_length(e, kappa) / kappa.clamp(min=1e-30), 1 / e)
        return share * self.natural

    @property
    def covariance(self) -> Tensor:
        """The covariance of v: A' along the mean direction, A / kappa across it, (batch, parents, e, e)."""
        mean, e = self.mean, self.natural.shape[-1]
        kappa = self.natural.norm(dim=-1, keepdim=True).unsqueeze(-1)
        across = torch.where(kappa > 0, mean_resultant_length(e, kappa) / kappa.clamp(min=1e-30), 1 / e)
        direction = (self.natural / kappa.squeeze(-1).clamp(min=1e-30)).unsqueeze(-1)
        along = (1 - mean.square().sum(-1, keepdim=True).unsqueeze(-1) - (e - 1) * across).clamp(min=0)
        eye = torch.eye(e, dtype=mean.dtype, device=mean.device)
        return across * eye + (along - across) * (direction @ direction.mT)

    def statistics(self, mixture: Mixture, children: Children) -> Statistics:
        """Statistics of the children under these beliefs."""
        poses, directions = mixture.agreements(children, self.mean)
        return Statistics(poses, directions, torch.ones((), dtype=poses.dtype, device=poses.device))

    def log_normaliser(self, mixture: Mixture, statistics: Statistics) -> tuple[Tensor, Tensor | None]:
        """log C_d(kappa_ij), and nothing that the update needs."""
        return log_vmf_normaliser(mixture.dimension, mixture.kappa), None

    def update(
        self, mixture: Mixture, children: Children, responsibilities: Tensor, _: Tensor | None
    ) -> "SphereParents":
        """The best q(v) for these responsibilities."""
        return SphereParents(self.prior + mixture.pull(children, responsibilities), self.prior)

    def divergence(self) -> Tensor:
        """sum_j KL(q(v_j) || p(v_j)): (batch,)."""
        e = self.natural.shape[-1]
        own, prior = (log_vmf_normaliser(e, x.norm(dim=-1)) for x in (self.natural, self.prior))
        return (own - prior + ((self.natural - self.prior) * self.mean).sum(-1)).sum(-1)
