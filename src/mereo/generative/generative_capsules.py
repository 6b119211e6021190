"""A layer of children under parents, as a generative model with learned transforms."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.errors import UsageError, check_positive, check_steps
from mereo.generative.capsule_mixture import CapsuleMixture
from mereo.generative.inversion import FreeParents, Inversion, invert
from mereo.generative.inversion.free import bound, gram
from mereo.generative.inversion.problem import Children, Mixture


class Drawn(NamedTuple):
    """Sampled children.

    Attributes:
        parents: v, (count, parents, parent_dim).
        chosen: which parent made each child, int64 (count, children).
        poses: predicted by that parent, without noise, (count, children, child_dim).
    """

    parents: Tensor
    chosen: Tensor
    poses: Tensor


class GenerativeCapsules(nn.Module):
    """Children made by parents: each child picks one of them and takes the pose that it predicts.

    z_i ~ rho_i,  v_j ~ N(mu_j, I),  V_i | z_i = j ~ N(T_ij v_j, sigma^2 I),  D_i | z_i = j ~ vMF(T_ij v_j, kappa)

    Args:
        children, parents: how many of each.
        child_dim, parent_dim: their pose sizes.
        sweeps: of `invert`, in training and after.
        sigma: initial size of the noise; learned, at least 0.01.
        kappa: how much the direction of a child counts relative to its pose; held. 0 for not at all.
        sparsity: lambda of the sparse prior of `invert`; 0 for none.

    Learned: T, normal at first with deviation 0.1; mu, normal with deviation 1, so that parents differ; log rho for
    every pair; log sigma.

    Reference: arXiv:2209.02567, equations 7 and 8; the inversion and the training are ours, docs/generative.md.
    """

    def __init__(
        self,
        children: int,
        parents: int,
        child_dim: int,
        parent_dim: int,
        *,
        sweeps: int = 5,
        sigma: float = 0.3,
        kappa: float = 1.0,
        sparsity: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(children=children, parents=parents, child_dim=child_dim, parent_dim=parent_dim)
        check_positive(sigma=sigma)
        check_steps(1, sweeps=sweeps)
        if not (kappa >= 0 and sparsity >= 0):
            raise UsageError(f"kappa is {kappa} and sparsity {sparsity}; both must be at least 0.")
        self.sweeps, self.kappa, self.sparsity = sweeps, kappa, sparsity
        self.weight = nn.Parameter(0.1 * torch.randn(children, parents, child_dim, parent_dim))
        self.prior_mean = nn.Parameter(torch.randn(parents, parent_dim))
        self.log_prior = nn.Parameter(torch.zeros(children, parents))
        self.log_sigma = nn.Parameter(torch.tensor(sigma).log())

    @property
    def sigma(self) -> Tensor:
        """The noise of a coordinate: ()."""
        return self.log_sigma.exp().clamp(min=0.01)

    def invert(self, poses: Tensor, mask: Tensor | None = None, *, sweeps: int | None = None) -> Inversion:
        """Which parents explain these children; see `mereo.generative.invert`.

        Shapes: poses (batch, children, child_dim), mask bool (batch, children), True = the child was seen.
        """
        return invert(
            poses,
            self.weight,
            sigma=self.sigma,
            kappa=self.kappa,
            log_prior=self.log_prior,
            mask=mask,
            prior=self.prior_mean,
            sparsity=self.sparsity,
            sweeps=sweeps or self.sweeps,
        )

    def elbo(self, poses: Tensor, inversion: Inversion, mask: Tensor | None = None) -> Tensor:
        """The bound at the result of the inversion, differentiable in all learned parameters: (batch,)."""
        beliefs = inversion.parents
        assert isinstance(beliefs, FreeParents)
        weight = self.weight.transpose(0, 1)
        like = {"dtype": poses.dtype, "device": poses.device}
        mixture = Mixture(
            weight,
            self.sigma.reshape(1, 1),
            torch.full((1, 1), self.kappa, **like),  # type: ignore[call-overload]
            self.log_prior.log_softmax(-1).mT,
            None,
            weight.shape[0],
        )
        held = FreeParents(
            beliefs.mean, beliefs.covariance, self.prior_mean, beliefs.prior_precision, gram(weight), self.sparsity,
            beliefs.width,
        )  # fmt: skip
        return bound(mixture, Children.observe(poses, None, mask), held, inversion.responsibilities.mT)

    def predict(self, inversion: Inversion) -> Tensor:
        """The children as their parents would have them, E sum_j r_ij T_ij v_j: (batch, children, child_dim)."""
        return torch.einsum("bmn,mnde,bne->bmd", inversion.responsibilities, self.weight, inversion.mean)

    def forward(self, poses: Tensor, mask: Tensor | None = None) -> Tensor:
        """The bound of each image's children, for training: maximise its mean.

        Shapes: poses (batch, children, child_dim), mask bool (batch, children) -> (batch,).
        """
        return self.elbo(poses, self.invert(poses.detach(), mask), mask)

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator | None = None) -> Drawn:
        """Draw parents from their prior, a parent for each child, and its prediction."""
        check_positive(count=count)
        n, e = self.prior_mean.shape
        like = {"dtype": self.weight.dtype, "device": self.weight.device}
        parents = self.prior_mean + torch.randn(count, n, e, generator=generator, **like)  # type: ignore[call-overload]
        return self.from_parents(parents, generator)

    @torch.no_grad()
    def from_parents(self, parents: Tensor, generator: torch.Generator | None = None) -> Drawn:
        """The same for given parents: (count, parents, parent_dim)."""
        shares = self.log_prior.softmax(-1)
        chosen = torch.multinomial(shares, len(parents), replacement=True, generator=generator).mT
        picked = F.one_hot(chosen, shares.shape[1]).to(parents)
        poses = torch.einsum("bmn,mnde,bne->bmd", picked, self.weight, parents)
        return Drawn(parents, chosen, poses)

    def mixture(self, parents: Tensor) -> CapsuleMixture:
        """The density of the children under given parents: (..., parents, parent_dim)."""
        predictions = torch.einsum("mnde,...ne->...mnd", self.weight, parents)
        return CapsuleMixture(predictions, self.sigma, self.kappa, self.log_prior)

    def extra_repr(self) -> str:
        children, parents, child_dim, parent_dim = self.weight.shape
        return f"{parents} x {parent_dim} -> {children} x {child_dim}, sweeps={self.sweeps}, kappa={self.kappa}"
