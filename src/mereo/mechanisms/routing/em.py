"""EM routing: each parent is a Gaussian cluster of the votes of its children, fitted by a few steps of EM.

Source: Hinton, Sabour, Frosst, "Matrix capsules with EM routing", ICLR 2018,
https://openreview.net/forum?id=HJWLfGWRb (not on arXiv); its pitfalls: Gritzman 2019, arXiv:1907.00652.
Cost: votes 2 S R D sqrt(D) FLOPs an image, each step about 8 S R D; the compiled and the streamed
passes keep no votes (see `core/kernels/gaussians.py`), the plain one batch S R D.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mereo.core import Capsules, Coupling, depends, mechanism
from mereo.core.kernels.gaussians import Floor, Gaussians, fit_gaussians, log_density
from mereo.core.window_votes import WindowVotes
from mereo.errors import check_choice, check_positive, check_steps, unknown
from mereo.mechanisms.routing.matrix_routing import Clusters, ClusterVoteRouting, MatrixRouting
from mereo.mechanisms.routing.vote_routing import vote_routing

PRESENT = 1e-8
"""Activation below which a child counts less and less, if responsibilities are renormalised."""


class Cluster(NamedTuple):
    """Parents as Gaussians over votes.

    Attributes:
        mean, variance (batch, receivers, pose).
        log_activation (batch, receivers): logarithm of the activation of a parent.
    """

    mean: Tensor
    variance: Tensor
    log_activation: Tensor


class EMOptions(NamedTuple):
    """Settings of EM routing; the defaults are the paper's.

    Attributes:
        steps: how often parents are fitted, at least 1. Gradients flow through all of them.
        inverse_temperature: of the activations, its final value.
        schedule: "rising", inverse_temperature (1 - 0.95^t) at step t, as the authors gave it; or "constant".
        variance_floor: added to every variance, because the vote of a single child has none.
        floor: "added" or "clamped", so that it is the least variance and larger ones stay as they are.
        renormalise: divide each child's shares by their sum, so that its activation no longer matters, as some public
            code does.
        cost_per_children: multiply the cost by 100 receivers / senders, so that one schedule fits layers with few and
            with many children (arXiv:1907.00652).
    """

    steps: int = 3
    inverse_temperature: float = 0.01
    schedule: str = "rising"
    variance_floor: float = 1e-6
    floor: str = "added"
    renormalise: bool = False
    cost_per_children: bool = False

    @classmethod
    def checked(cls, options: Mapping[str, Any]) -> "EMOptions":
        """From keywords; UsageError for an unknown one or a wrong value."""
        for name in options:
            if name not in cls._fields:
                raise unknown("option of EM routing", name, cls._fields)
        self = cls(**options)
        check_positive(inverse_temperature=self.inverse_temperature)
        check_steps(1, steps=self.steps)
        check_positive(variance_floor=self.variance_floor)
        check_choice("schedule", self.schedule, ("rising", "constant"))
        check_choice("floor", self.floor, ("added", "clamped"))
        return self

    @property
    def temperatures(self) -> list[float]:
        """The inverse temperature of every step."""
        if self.schedule == "constant":
            return [self.inverse_temperature] * self.steps
        return inverse_temperatures(self.steps, self.inverse_temperature)


def inverse_temperatures(steps: int, last: float) -> list[float]:
    """last (1 - 0.95^t) for t = 1 ... steps: the authors' schedule for `last` = 0.01."""
    return [last * (1 - 0.95**t) for t in range(1, steps + 1)]


def log_activations(
    variance: Tensor, total: Tensor, beta_use: Tensor, beta_activation: Tensor, inverse_temperature: float
) -> Tensor:
    """log a_r of each parent, which is higher the closer its votes are to each other.

    cost_r = S_r sum_h (beta_use_r + log(var_rh) / 2),   a_r = sigmoid(inverse_temperature (beta_activation_r - cost_r))

    Shapes: total S (batch, receivers), betas (receivers,) -> (batch, receivers).

    Reference: Hinton et al. 2018, procedure 1, M-step.
    """
    cost = total * (beta_use.unsqueeze(-1) + variance.log() / 2).sum(-1)
    return nn.functional.logsigmoid(inverse_temperature * (beta_activation - cost))


def fit_clusters(
    votes: Tensor,
    weights: Tensor,
    beta_use: Tensor,
    beta_activation: Tensor,
    inverse_temperature: float,
    variance_floor: float,
) -> Cluster:
    """The M step: the Gaussian of each parent, `fit_gaussians`, and its activation, `log_activations`.

    Shapes: votes (batch, receivers, senders, pose), weights (batch, receivers, senders), betas (receivers,).
    """
    mean, variance = fit_gaussians(votes, weights, Floor(variance_floor))
    present = log_activations(variance, weights.sum(-1), beta_use, beta_activation, inverse_temperature)
    return Cluster(mean, variance, present)


def vote_scores(votes: Tensor, cluster: Cluster) -> Tensor:
    """The scores of the E step: log a_r + log N(V_rs; mu_r, var_r), (batch, receivers, senders).

    Reference: Hinton et al. 2018, procedure 1, E-step.
    """
    return log_density(votes, Gaussians(cluster.mean, cluster.variance)) + cluster.log_activation.unsqueeze(-1)


def route_em(
    votes: WindowVotes,
    present: Tensor,
    coupling: Coupling,
    beta_use: Tensor,
    beta_activation: Tensor,
    options: EMOptions,
) -> Cluster:
    """Parents of every window, fitted `options.steps` times.

    Shapes: present (batch * windows, senders), betas (receivers,).

    Reference: Hinton et al. 2018, procedure 1.
    """
    _, receivers, senders, _ = votes.sizes
    floor = Floor(options.variance_floor, options.floor == "clamped")
    scale = 100 * receivers / senders if options.cost_per_children else 1.0
    if options.renormalise:
        present = present / (present + PRESENT)
    weight, temperatures = present[:, None, None], options.temperatures

    def step(scores: Tensor, number: int) -> tuple[Cluster, Tensor | None]:
        couplings = votes.couple(coupling, scores, weight=weight).squeeze(1)
        mean, variance, fits = votes.gaussians(couplings, floor, with_fit=number < len(temperatures))
        total = couplings.sum(-1) * scale
        present = log_activations(variance, total, beta_use, beta_activation, temperatures[number - 1])
        return Cluster(mean, variance, present), fits

    cluster, fits = step(votes.equal_scores(), 1)
    for number in range(2, len(temperatures) + 1):
        assert fits is not None
        cluster, fits = step((fits + cluster.log_activation.unsqueeze(-1)).unsqueeze(1), number)
    return cluster


class _Parents(Clusters):
    """Base of both forms of the routing: the steps."""

    def fit_parents(self, votes: WindowVotes, present: Tensor) -> Capsules:
        betas = self.beta_use.to(votes.poses.dtype), self.beta_activation.to(votes.poses.dtype)
        cluster = route_em(votes, present, self.coupling, *betas, self.options)
        return Capsules(cluster.mean, cluster.log_activation.exp())


@vote_routing("em")
class EMVoteRouting(_Parents, ClusterVoteRouting):
    """EM routing of the votes that a layer makes: see `EMRouting` for the equations and `EMOptions` for the options.

    Args:
        receivers, senders, pose: as for every `VoteRouting`.
        options: see `EMOptions`.

    Reads as: couplings[b, 0, r, s] is what parent r takes of child s: its share of the child times the activation of
        the child.

    Reference: Hinton, Sabour, Frosst 2018 (ICLR), procedure 1.
    """

    def __init__(self, receivers: int, senders: int, pose: int, **options: Any) -> None:
        super().__init__(receivers, senders, pose)
        self._prepare(receivers, EMOptions.checked(options))


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return EMRouting(12, 5), (torch.randn(3, 12, 16), torch.rand(3, 12))


@mechanism(
    "em",
    family="routing",
    over="receivers",
    steps=depends("steps", 3),
    values="per pair",
    update="mean and variance of the votes",
    source="https://openreview.net/forum?id=HJWLfGWRb",
    promises=("normalised", "masks", "any sender order", "any receiver order"),
    sender_axes={"0": 1, "1": 1, "weight": 1},
    receiver_axes={"weight": 0, "beta_use": 0, "beta_activation": 0, "output": 1},
    example=_example,
)
class EMRouting(_Parents, MatrixRouting):
    """Make each parent the Gaussian cluster of its children's votes, active where the votes are many and tight.

    V_rs = M_s W_rs (matrices);  R = softmax_r(0);  `steps` times:
        fit each parent to its votes with weights R_rs a_s:  mu_r, var_r, a_r   (`fit_gaussians`, `log_activations`)
        R_rs = softmax_r(log a_r + log N(V_rs; mu_r, var_r))                    (`log_density`)

    Args:
        senders, receivers: how many children and parents.
        side: poses are `side` x `side` matrices.
        steps: how often parents are fitted, at least 1. Gradients flow through all of them.
        options: temperatures, variance floor and deviations of public code: see `EMOptions`.

    Shapes: poses (batch, senders, side * side), matrices row by row; activation (batch, senders) in [0, 1]; mask
        (batch, senders) -> (batch, receivers, side * side + 1), poses and then, as the last entry, the activation.
        `route` gives them apart.

    Reads as: couplings[b, 0, r, s] is what parent r takes of child s: its share of the child times the activation of
        the child, so that the couplings of a child sum to its activation.

    Deviates: transforms start as the identity plus normal noise of 0.1 and both betas at 0; the paper starts the betas
        such that half of the capsules are active. The variance floor is added, where the paper has none, and with few
        children it changes the means; floor="clamped" changes only variances below it. Parents have no position here,
        so all of them compete for each child: see `mereo.layers.capsules.ConvCapsules`.

    Reference: Hinton, Sabour, Frosst 2018 (ICLR), procedure 1.
    """

    def __init__(self, senders: int, receivers: int, side: int = 4, *, steps: int = 3, **options: Any) -> None:
        super().__init__()
        check_positive(senders=senders, receivers=receivers, side=side)
        self.weight = nn.Parameter(torch.eye(side) + 0.1 * torch.randn(receivers, senders, side, side))
        self._prepare(receivers, EMOptions.checked({"steps": steps, **options}))
