"""Parents anywhere in R^e under any transform: Gaussian beliefs, and a bound under which they stay Gaussian.

The von Mises-Fisher factor takes the prediction itself as natural parameter: its concentration is kappa |U|, a longer
prediction is surer of its direction. log C_d is convex as a function of the squared concentration, so that its tangent
bounds it from below, and the bound is quadratic in v:

    log C_d(x) >= log C_d(xi) - A_d(xi) / (2 xi) (x^2 - xi^2),    equal at x = xi
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mereo.generative.bessel import log_vmf_normaliser, log_vmf_normaliser_and_slope
from mereo.generative.inversion.problem import Children, Mixture, Statistics


def _pack(symmetric: Tensor, off_diagonal: float = 1.0) -> Tensor:
    """The upper triangle of (..., e, e), its off-diagonal entries times a factor: (..., e (e + 1) / 2)."""
    e = symmetric.shape[-1]
    rows, columns = torch.triu_indices(e, e, device=symmetric.device)
    factor = torch.where(rows == columns, 1.0, off_diagonal).to(symmetric.dtype)
    return symmetric[..., rows, columns] * factor


def _unpack(packed: Tensor, e: int) -> Tensor:
    """The symmetric matrix of a packed upper triangle: (..., e (e + 1) / 2) -> (..., e, e)."""
    rows, columns = torch.triu_indices(e, e, device=packed.device)
    full = packed.new_zeros(*packed.shape[:-1], e, e)
    full[..., rows, columns] = packed
    full[..., columns, rows] = packed
    return full


def gram(weight: Tensor) -> Tensor:
    """T^T T, packed: (components, children or none, e (e + 1) / 2)."""
    return _pack(weight.mT @ weight)


@dataclass(frozen=True)
class FreeParents:
    """q(v_j) = N(mean_j, covariance_j).

    S_j^-1 = Lambda0 + sum_i r_ij (1 / sigma_ij^2 + kappa_ij^2 A(xi_ij) / xi_ij) T_ij^T T_ij + lambda / w_j I
    m_j = S_j (Lambda0 mu0 + sum_i r_ij T_ij^T (V_i / sigma_ij^2 + kappa_ij D_i))

    with xi_ij = kappa_ij sqrt(E |U_ij|^2) and w_j = sqrt(E |v_j|^2), renewed with every belief.

    Attributes:
        mean: (batch, parents, e).
        covariance: (batch, parents, e, e).
        prior_mean: mu0, (parents, e).
        prior_precision: Lambda0, (parents, e, e).
        gram: T^T T as `gram` packs it.
        sparsity: lambda of a prior exp(-lambda |v_j|) in addition to the Gaussian one, bounded by
            |v| <= |v|^2 / (2 w) + w / 2; 0 for none.
        width: w, (batch, parents).
    """

    mean: Tensor
    covariance: Tensor
    prior_mean: Tensor
    prior_precision: Tensor
    gram: Tensor
    sparsity: float
    width: Tensor

    def second_moment(self) -> Tensor:
        """E v v^T: (batch, parents, e, e)."""
        return self.covariance + self.mean.unsqueeze(-1) * self.mean.unsqueeze(-2)

    def statistics(self, mixture: Mixture, children: Children) -> Statistics:
        """Statistics of the children under these beliefs."""
        poses, directions = mixture.agreements(children, self.mean)
        moments = mixture.of_components(_pack(self.second_moment(), 2.0))
        if self.gram.dim() == 2:
            return Statistics(poses, directions, (moments * self.gram).sum(-1, keepdim=True).clamp(min=0))
        squares = torch.einsum("brk,rsk->brs", moments, self.gram)
        return Statistics(poses, directions, squares.clamp(min=0))

    def log_normaliser(self, mixture: Mixture, statistics: Statistics) -> tuple[Tensor, Tensor]:
        """log C_d(xi), and A(xi) / xi for the update: (batch, components, children) each."""
        xi = mixture.kappa * statistics.squares.sqrt()
        return log_vmf_normaliser_and_slope(mixture.dimension, xi)

    def update(self, mixture: Mixture, children: Children, responsibilities: Tensor, slope: Tensor) -> "FreeParents":
        """The best q(v) for these responsibilities and this tangent."""
        e = self.mean.shape[-1]
        surer = mixture.kappa**2 * slope
        sure = 1 / mixture.sigma**2 + (surer * children.directed if children.some_undirected else surer)
        weights = responsibilities * sure
        if self.gram.dim() == 2:
            packed = weights.sum(-1, keepdim=True) * self.gram
        else:
            packed = torch.einsum("brs,rsk->brk", weights, self.gram)
        precision = self.prior_precision + _unpack(mixture.of_parents(packed), e)
        if self.sparsity:
            eye = torch.eye(e, dtype=precision.dtype, device=precision.device)
            precision = precision + (self.sparsity / self.width.clamp(min=1e-12))[..., None, None] * eye
        known = (self.prior_precision @ self.prior_mean.unsqueeze(-1)).squeeze(-1)
        pull = known + mixture.pull(children, responsibilities)
        factor = torch.linalg.cholesky(precision)
        covariance = torch.cholesky_inverse(factor)
        mean = torch.cholesky_solve(pull.unsqueeze(-1), factor).squeeze(-1)
        return replace(self, mean=mean, covariance=covariance).renewed()

    def renewed(self) -> "FreeParents":
        """The same beliefs, with the width w that maximises the bound."""
        if not self.sparsity:
            return self
        return replace(self, width=self._length())

    def _length(self) -> Tensor:
        return self.second_moment().diagonal(dim1=-2, dim2=-1).sum(-1).sqrt()

    def divergence(self) -> Tensor:
        """sum_j KL(q(v_j) || p(v_j)), with the bound of the sparse prior: (batch,)."""
        e = self.mean.shape[-1]
        away = self.mean - self.prior_mean
        trace = (self.prior_precision * self.covariance).sum((-2, -1))
        distance = torch.einsum("bpk,pkl,bpl->bp", away, self.prior_precision, away)
        logs = torch.logdet(self.covariance) + torch.logdet(self.prior_precision)
        total = (trace + distance - e - logs) / 2
        if self.sparsity:
            width = self.width.clamp(min=1e-12)
            total = total + self.sparsity * (self._length().square() / (2 * width) + width / 2)
        return total.sum(-1)


def bound(
    mixture: Mixture, children: Children, parents: FreeParents, responsibilities: Tensor, *, eps: float = 1e-30
) -> Tensor:
    """The ELBO at these responsibilities and beliefs, differentiable in the mixture, the prior and the children.

    At the best beliefs its gradient equals the gradient of the maximised bound; at any other beliefs the value is
    still a lower bound.

    Shapes: responsibilities (batch, components, children) -> (batch,).
    """
    statistics = parents.statistics(mixture, children)
    # The root has no derivative at 0, where the normaliser has none either.
    concentration = mixture.kappa * statistics.squares.clamp(min=eps).sqrt()
    evidence = mixture.evidence(children, statistics, log_vmf_normaliser(mixture.dimension, concentration))
    evidence = evidence.masked_fill(responsibilities == 0, 0)
    terms = responsibilities * evidence - torch.special.xlogy(responsibilities, responsibilities)
    return terms.sum((1, 2)) - parents.divergence()
