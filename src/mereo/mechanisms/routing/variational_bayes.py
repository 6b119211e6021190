"""Variational Bayes routing: each parent is a Gaussian cluster of votes with priors, which keep it from collapsing.

Source: De Sousa Ribeiro, Leontidis, Kollias 2020, arXiv:1905.11455, and the authors' code.
Cost: votes 2 S R D sqrt(D) FLOPs an image, each step about 8 S R D, and D digammas a parent. With a diagonal covariance
no tensor of votes is made: the priors are two more children, see `WithPriors`, and EM routing makes the passes.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mereo.core import Capsules, bounded, depends, mechanism
from mereo.core.kernels.gaussians import Floor, fit_gaussians
from mereo.core.log_gamma import digamma
from mereo.core.window_votes import WindowVotes
from mereo.errors import check_choice, check_positive, check_steps, unknown
from mereo.mechanisms.routing.matrix_routing import Clusters, ClusterVoteRouting, MatrixRouting
from mereo.mechanisms.routing.vote_routing import vote_routing

LEAST_SCORE = -1e30
"""Score of a vote far from every parent, so that it is divided equally, not by a difference of infinities."""


class BayesOptions(NamedTuple):
    """Priors of the parents, and how they are fitted; the defaults are the authors'.

    Attributes:
        steps: how often parents are fitted, at least 1. Gradients flow through all of them.
        concentration: of the Dirichlet prior of the mixing weights.
        mean, strength: of the Gaussian prior of the means; its strength is the number of votes that it counts as.
        scale: the Wishart prior of the precisions is `scale` times the identity, and has D + 1 degrees of freedom.
        covariance: "diagonal" or "full".
        start: the first shares of a child: "types", 1 / receivers in every window (the authors' code), or "parents",
            the same for all parents that compete for it, so that they sum to one.
        normalise: batch norms, without parameters, of the parents' poses and of their activations before the sigmoid.
    """

    steps: int = 3
    concentration: float = 1.0
    mean: float = 0.0
    strength: float = 1.0
    scale: float = 1.0
    covariance: str = "diagonal"
    start: str = "types"
    normalise: bool = True

    @classmethod
    def checked(cls, options: Mapping[str, Any]) -> "BayesOptions":
        """From keywords; UsageError for an unknown one or a wrong value."""
        for name in options:
            if name not in cls._fields:
                raise unknown("option of variational Bayes routing", name, cls._fields)
        self = cls(**options)
        check_positive(concentration=self.concentration, strength=self.strength, scale=self.scale)
        check_steps(1, steps=self.steps)
        check_choice("covariance", self.covariance, ("diagonal", "full"))
        check_choice("start", self.start, ("types", "parents"))
        return self


class Posterior(NamedTuple):
    """Parents as Gaussians over votes with unknown mean and precision, Lambda ~ Wishart(scatter^-1, freedom).

    Attributes:
        total (batch, receivers): the sum of the weights of all children.
        mean (batch, receivers, pose): m, of the mean of the votes.
        scatter: Psi^-1, of shape (batch, receivers, pose), or (batch, receivers, pose, pose) for a full covariance.
    """

    total: Tensor
    mean: Tensor
    scatter: Tensor

    @property
    def full(self) -> bool:
        """Whether the covariance is full."""
        return self.scatter.dim() > self.mean.dim()

    @property
    def freedom(self) -> Tensor:
        """nu = D + 1 + total."""
        return self.total + (self.mean.shape[-1] + 1)


def fit_posterior(votes: Tensor, weights: Tensor, options: BayesOptions) -> Posterior:
    """The posterior of each parent, given how much it takes of each child.

    R = sum_s w_s,   mu = sum_s w_s V_s / R,   m = (R mu + kappa m0) / (kappa + R)
    Psi^-1 = Psi0^-1 + sum_s w_s (V_s - mu)(V_s - mu)^T + kappa R / (kappa + R) (mu - m0)(mu - m0)^T

    Shapes: votes (batch, receivers, senders, pose), weights (batch, receivers, senders).

    Reference: arXiv:1905.11455, algorithm 1.
    """
    total, kappa = weights.sum(-1), options.strength
    wide = total.unsqueeze(-1)
    average, variance = fit_gaussians(votes, weights, Floor(0.0))
    mean = (wide * average + kappa * options.mean) / (kappa + wide)
    pull, offset = kappa * wide / (kappa + wide), average - options.mean
    if options.covariance == "diagonal":
        return Posterior(total, mean, 1 / options.scale + wide * variance + pull * offset.square())
    apart = votes - average.unsqueeze(-2)
    scatter = apart.transpose(-1, -2) @ (weights.unsqueeze(-1) * apart)
    scatter = scatter + pull.unsqueeze(-1) * offset.unsqueeze(-1) * offset.unsqueeze(-2)
    # Where votes are huge, the prior is less than their rounding, and the matrix would have no root.
    rounding = 8 * scatter.shape[-1] * torch.finfo(scatter.dtype).eps
    most = scatter.detach().diagonal(dim1=-2, dim2=-1).amax(-1)
    ridge = 1 / options.scale + rounding * most[..., None, None]
    identity = torch.eye(votes.shape[-1], dtype=votes.dtype, device=votes.device)
    return Posterior(total, mean, scatter + ridge * identity)


def log_determinant(posterior: Posterior) -> Tensor:
    """log |Psi^-1|: (batch, receivers)."""
    if not posterior.full:
        return posterior.scatter.log().sum(-1)
    return 2 * torch.linalg.cholesky(posterior.scatter).diagonal(dim1=-2, dim2=-1).log().sum(-1)


def expected_log_precision(posterior: Posterior) -> Tensor:
    """E[log |Lambda|] = sum_d psi((nu - d) / 2) + D log 2 - log |Psi^-1|, d = 0 ... D - 1: (batch, receivers).

    Reference: arXiv:1905.11455, algorithm 1.
    """
    dim = posterior.mean.shape[-1]
    below = torch.arange(dim, device=posterior.total.device)
    halves = (posterior.freedom.unsqueeze(-1) - below) / 2
    return digamma(halves).sum(-1) + dim * math.log(2) - log_determinant(posterior)


def expected_log_share(posterior: Posterior, options: BayesOptions) -> Tensor:
    """E[log pi] = psi(alpha_r) - psi(sum_r alpha_r), over the types of parents at a position: (batch, receivers).

    Reference: arXiv:1905.11455, algorithm 1.
    """
    alpha = options.concentration + posterior.total
    return digamma(alpha) - digamma(alpha.sum(-1, keepdim=True))


def vote_scores(votes: Tensor, posterior: Posterior, options: BayesOptions) -> Tensor:
    """log rho: how well each vote fits each parent, (batch, receivers, senders).

    log rho = E[log pi] + (E[log |Lambda|] - D log 2 pi - D / kappa - nu (V - m)^T Psi (V - m)) / 2

    Reference: arXiv:1905.11455, algorithm 1.
    """
    apart = votes - posterior.mean.unsqueeze(-2)
    if posterior.full:
        root = torch.linalg.cholesky(posterior.scatter)
        far = torch.linalg.solve_triangular(root, apart.transpose(-1, -2), upper=False).square().sum(-2)
    else:
        far = (apart.square() / posterior.scatter.unsqueeze(-2)).sum(-1)
    fits = far * posterior.freedom.unsqueeze(-1) / -2
    return (fits + score_level(posterior, options).unsqueeze(-1)).clamp(min=LEAST_SCORE)


def score_level(posterior: Posterior, options: BayesOptions) -> Tensor:
    """The term that the scores of all votes for a parent share: (batch, receivers)."""
    dim = posterior.mean.shape[-1]
    level = expected_log_share(posterior, options) - dim / (2 * (options.strength + posterior.total))
    return level + expected_log_precision(posterior) / 2 - dim * math.log(2 * math.pi) / 2


class WithPriors:
    """The votes of a layer, and two children more that stand for the priors of a diagonal covariance.

    Both have the weight kappa / 2 for each parent; one votes m0 + t in every entry and the other m0 - t, with
    t^2 = 1 / (kappa psi0), where Psi0 is psi0 times the identity. Then the weighted mean of all votes is m, and their
    weighted variance Psi^-1 / (kappa + R): the plain statistics of a Gaussian are the posterior.

    Args:
        votes: of the children.
        options: with the priors.
    """

    def __init__(self, votes: WindowVotes, options: BayesOptions) -> None:
        self.options = options
        poses, weight = bounded(votes.poses), votes.weight
        apart = (options.strength * options.scale) ** -0.5
        more, write = poses.new_zeros(2, *poses.shape[2:]), weight.new_zeros(1, 2, *weight.shape[2:])
        more[0, :, 0], more[1, :, 0], write[..., 0, :] = options.mean + apart, options.mean - apart, 1
        self.votes = WindowVotes(
            torch.cat((poses, more.expand(poses.shape[0], -1, -1, -1)), 1),
            torch.cat((weight, write.expand(weight.shape[0], -1, -1, -1)), 1),
            method=votes.method,
        )

    def fit(self, weights: Tensor, with_scores: bool) -> tuple[Posterior, Tensor | None]:
        """The posterior as for `fit_posterior`, and the scores as for `vote_scores`."""
        kappa, total = self.options.strength, weights.sum(-1)
        all_weights = torch.cat((weights, weights.new_full((*total.shape, 2), kappa / 2)), -1)
        mean, variance, fits = self.votes.gaussians(all_weights, Floor(0.0), with_fit=with_scores)
        counted = (total + kappa).unsqueeze(-1)
        posterior = Posterior(total, mean, variance * counted)
        if fits is None:
            return posterior, None
        level = (2 * math.pi * variance).log().sum(-1, keepdim=True) / 2
        fits = (fits[..., :-2] + level) * (posterior.freedom.unsqueeze(-1) / counted)
        return posterior, (fits + score_level(posterior, self.options).unsqueeze(-1)).clamp(min=LEAST_SCORE)


class ParentNorm(nn.BatchNorm1d):
    """A batch norm without parameters, of each type of parents over images and positions; a single one is not normed
    by itself but by the running statistics.

    Shapes: (batch, receivers) or (batch, receivers, pose) -> the same.
    """

    def __init__(self, receivers: int) -> None:
        super().__init__(receivers, affine=False)

    def forward(self, input: Tensor) -> Tensor:
        assert self.running_mean is not None and self.running_var is not None
        if self.training and input.numel() > input.shape[1]:
            return super().forward(input.to(self.running_mean.dtype)).to(input.dtype)
        shape = (-1, *[1] * (input.dim() - 2))
        mean, variance = (x.to(input.dtype).view(shape) for x in (self.running_mean, self.running_var))
        return (input - mean) * (variance + self.eps).rsqrt()


def _fitting(votes: WindowVotes, options: BayesOptions) -> Callable[[Tensor, bool], tuple[Posterior, Tensor | None]]:
    """A function from weights to the posterior and, if they are wanted, the scores."""
    if options.covariance == "diagonal":
        return WithPriors(votes, options).fit
    dense = votes.dense().squeeze(1)

    def fit(weights: Tensor, with_scores: bool) -> tuple[Posterior, Tensor | None]:
        posterior = fit_posterior(dense, weights, options)
        return posterior, vote_scores(dense, posterior, options) if with_scores else None

    return fit


class _Parents(Clusters):
    """Base of both forms of the routing: norms, and the steps."""

    def _prepare(self, receivers: int, options: BayesOptions) -> None:
        super()._prepare(receivers, options)
        normed = options.normalise
        self.pose_norm = ParentNorm(receivers) if normed else nn.Identity()
        self.activation_norm = ParentNorm(receivers) if normed else nn.Identity()

    def fit_parents(self, votes: WindowVotes, present: Tensor) -> Capsules:
        options, weight = self.options, present[:, None, None]
        by_types = votes
        if options.start == "types" and votes.across is not None:
            by_types = WindowVotes(votes.poses, votes.weight, votes.windows, compete="window")
        run = _fitting(votes, options)
        couplings = by_types.couple(self.coupling, votes.equal_scores(), weight=weight)
        posterior, scores = run(couplings.squeeze(1), options.steps > 1)
        for step in range(2, options.steps + 1):
            assert scores is not None
            couplings = votes.couple(self.coupling, scores.unsqueeze(1), weight=weight)
            posterior, scores = run(couplings.squeeze(1), step < options.steps)
        activation = self.activation_norm(self._evidence(posterior)).sigmoid()
        return Capsules(self.pose_norm(posterior.mean), activation)

    def _evidence(self, posterior: Posterior) -> Tensor:
        """z = beta_a - (exp(E[log pi]) H + beta_u), H = (D log(2 pi e) - E[log |Lambda|]) / 2: (batch, receivers).

        Reference: arXiv:1905.11455, algorithm 1.
        """
        dim = posterior.mean.shape[-1]
        entropy = (dim * math.log(2 * math.pi * math.e) - expected_log_precision(posterior)) / 2
        cost = expected_log_share(posterior, self.options).exp() * entropy
        return self.beta_activation.to(cost.dtype) - (cost + self.beta_use.to(cost.dtype))


@vote_routing("variational_bayes")
class VariationalBayesVoteRouting(_Parents, ClusterVoteRouting):
    """Variational Bayes routing of the votes that a layer makes: see `VariationalBayesRouting` and `BayesOptions`.

    Args:
        receivers, senders, pose: as for every `VoteRouting`.
        options: see `BayesOptions`.

    Reads as: couplings[b, 0, r, s] is what parent r takes of child s: its share of the child times the activation of
        the child.

    Reference: arXiv:1905.11455, algorithm 1.
    """

    def __init__(self, receivers: int, senders: int, pose: int, **options: Any) -> None:
        super().__init__(receivers, senders, pose)
        self._prepare(receivers, BayesOptions.checked(options))


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return VariationalBayesRouting(12, 5, 2), (torch.randn(3, 12, 4), torch.rand(3, 12))


_LEVEL = "in training the batch norm takes out what is the same in all images"


@mechanism(
    "variational_bayes",
    family="routing",
    over="receivers",
    steps=depends("steps", 3),
    values="per pair",
    update="posterior mean of the votes",
    source="arXiv:1905.11455",
    promises=("normalised", "masks", "any sender order", "any receiver order"),
    zero_gradients={"beta_use": _LEVEL, "beta_activation": _LEVEL},
    sender_axes={"0": 1, "1": 1, "weight": 1},
    receiver_axes={"weight": 0, "beta_use": 0, "beta_activation": 0, "output": 1},
    example=_example,
)
class VariationalBayesRouting(_Parents, MatrixRouting):
    """Make each parent a Gaussian cluster of its children's votes whose mean, precision and weight have priors.

    V_rs = M_s W_rs (matrices);  R_rs = 1 / receivers;  `steps` times:
        fit the posterior of each parent with weights R_rs a_s        (`fit_posterior`)
        R_rs = softmax_r(log rho_rs)                                  (`vote_scores`)
    pose = BN(m_r),   activation = sigmoid(BN(z_r))

    Args:
        senders, receivers: how many children and parents.
        side: poses are `side` x `side` matrices.
        steps: how often parents are fitted, at least 1. Gradients flow through all of them.
        options: priors and forms of the authors' code: see `BayesOptions`.

    Shapes: poses (batch, senders, side * side), matrices row by row; activation (batch, senders) in [0, 1]; mask
        (batch, senders) -> (batch, receivers, side * side + 1), poses and then, as the last entry, the activation.
        `route` gives them apart.

    Reads as: couplings[b, 0, r, s] is what parent r takes of child s: its share of the child times the activation of
        the child, so that the couplings of a child sum to its activation.

    Deviates: shares are normalised as logarithms, where the authors' code exponentiates first and may underflow.

    Reference: arXiv:1905.11455, algorithm 1.
    """

    def __init__(self, senders: int, receivers: int, side: int = 4, *, steps: int = 3, **options: Any) -> None:
        super().__init__()
        check_positive(senders=senders, receivers=receivers, side=side)
        self._prepare(receivers, BayesOptions.checked({"steps": steps, **options}))
        bound = (6 / ((senders + receivers) * side * side)) ** 0.5
        self.weight = nn.Parameter(torch.empty(receivers, senders, side, side).uniform_(-bound, bound))
