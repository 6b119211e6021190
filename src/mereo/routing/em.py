"""EM routing: each parent is a Gaussian cluster of the votes of its children, fitted by a few steps of EM.

Source: Hinton, Sabour, Frosst, "Matrix capsules with EM routing", ICLR 2018,
https://openreview.net/forum?id=HJWLfGWRb (not on arXiv); its pitfalls: Gritzman 2019, arXiv:1907.00652.
Cost: votes 2 S R D sqrt(D) FLOPs an image, each step about 8 S R D; the votes, batch S R D, are kept.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mereo.core import Capsules, Coupling, MatrixVotes, depends, mechanism, settle
from mereo.core.squash import accumulation_type, bounded
from mereo.errors import UsageError, check_positive

EMPTY = 1e-8
"""What a parent's share of the children counts as at the least, so that one without children has a mean of 0."""

LEAST_SCORE = -1e30
"""Of a vote far from every parent, so that it is shared out equally and not by a difference of infinities."""


class Cluster(NamedTuple):
    """Parents as Gaussians over votes.

    Attributes:
        mean, variance (batch, receivers, pose).
        log_activation (batch, receivers): log of how present a parent is.
    """

    mean: Tensor
    variance: Tensor
    log_activation: Tensor


def fit_clusters(
    votes: Tensor,
    weights: Tensor,
    beta_use: Tensor,
    beta_activation: Tensor,
    inverse_temperature: float,
    variance_floor: float,
) -> Cluster:
    """The M step: the Gaussian of each parent, and the activation that its tightness earns.

    S_r = sum_s w_rs,   mu_r = sum_s w_rs V_rs / S_r,   var_rh = sum_s w_rs (V_rsh - mu_rh)^2 / S_r + floor
    cost_r = S_r sum_h (beta_use_r + log(var_rh) / 2),   a_r = sigmoid(inverse_temperature (beta_activation_r - cost_r))

    Shapes: votes (batch, receivers, senders, pose), weights (batch, receivers, senders), betas (receivers,).

    Reference: Hinton et al. 2018, procedure 1, M-step.
    """
    total = weights.sum(-1, keepdim=True)
    share = (weights / total.clamp(min=EMPTY)).unsqueeze(-2)
    mean = (share @ votes).squeeze(-2)
    variance = (share @ (votes - mean.unsqueeze(-2)).square()).squeeze(-2) + variance_floor
    cost = total.squeeze(-1) * (beta_use.unsqueeze(-1) + variance.log() / 2).sum(-1)
    return Cluster(mean, variance, nn.functional.logsigmoid(inverse_temperature * (beta_activation - cost)))


def vote_scores(votes: Tensor, cluster: Cluster) -> Tensor:
    """What the E step compares: log a_r + log N(V_rs; mu_r, var_r), (batch, receivers, senders).

    Reference: Hinton et al. 2018, procedure 1, E-step.
    """
    mean, variance = cluster.mean.unsqueeze(-2), cluster.variance.unsqueeze(-2)
    exponents = (votes - mean).square() / variance + (2 * math.pi * variance).log()
    return (cluster.log_activation.unsqueeze(-1) - exponents.sum(-1) / 2).clamp(min=LEAST_SCORE)


def inverse_temperatures(steps: int, last: float) -> list[float]:
    """last (1 - 0.95^t) for t = 1 ... steps: the authors' schedule for `last` = 0.01."""
    return [last * (1 - 0.95**t) for t in range(1, steps + 1)]


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return EMRouting(12, 5), (torch.randn(3, 12, 16), torch.rand(3, 12))


@mechanism(
    "em",
    family="routing",
    over="receivers",
    steps=depends("steps", 3),
    says="a vote per pair",
    update="mean and variance of the votes",
    source="https://openreview.net/forum?id=HJWLfGWRb",
    promises=("normalised", "masks", "any sender order", "any receiver order"),
    sender_axes={"0": 1, "1": 1, "weight": 1},
    receiver_axes={"weight": 0, "beta_use": 0, "beta_activation": 0, "output": 1},
    example=_example,
)
class EMRouting(nn.Module):
    """Make each parent the Gaussian cluster of its children's votes, active where the votes are many and tight.

    V_rs = M_s W_rs (matrices);  R = softmax_r(0);  `steps` times:
        fit each parent to its votes with weights R_rs a_s:  mu_r, var_r, a_r       (`fit_clusters`)
        R_rs = softmax_r(log a_r + log N(V_rs; mu_r, var_r))                        (`vote_scores`)

    Args:
        senders, receivers: how many children and parents.
        side: poses are `side` x `side` matrices.
        steps: how often parents are fitted, at least 1. Gradients flow through all of them.
        inverse_temperature: final value of that of the activations, see `inverse_temperatures`.
        variance_floor: added to every variance: a parent with one child has none of its own.

    Shapes: poses (batch, senders, side * side), matrices row by row; activation (batch, senders) in [0, 1]; mask
        (batch, senders) -> (batch, receivers, side * side + 1), poses and then, as the last entry, the activation.
        `route` gives them apart.

    Reads as: couplings[b, 0, r, s] is what parent r takes of child s: its share of the child times the activation of
        the child, so that the couplings of a child sum to its activation.

    Deviates: transforms start as the identity plus normal noise of 0.1 and both betas at 0; the paper starts the betas
        such that half of the capsules are active. Parents have no position here: all of them compete for each child.

    Reference: Hinton, Sabour, Frosst 2018 (ICLR), procedure 1.
    """

    def __init__(
        self,
        senders: int,
        receivers: int,
        side: int = 4,
        *,
        steps: int = 3,
        inverse_temperature: float = 0.01,
        variance_floor: float = 1e-6,
    ) -> None:
        super().__init__()
        check_positive(senders=senders, receivers=receivers, side=side, steps=steps)
        check_positive(inverse_temperature=inverse_temperature, variance_floor=variance_floor)
        self.temperatures, self.variance_floor = inverse_temperatures(steps, inverse_temperature), variance_floor
        self.weight = nn.Parameter(torch.eye(side) + 0.1 * torch.randn(receivers, senders, side, side))
        self.beta_use = nn.Parameter(torch.zeros(receivers))
        self.beta_activation = nn.Parameter(torch.zeros(receivers))
        self.coupling = Coupling("receivers")

    def route(self, poses: Tensor, activation: Tensor, mask: Tensor | None = None) -> Capsules:
        """The parents' poses (batch, receivers, side * side) and activations (batch, receivers)."""
        _, senders, side, _ = self.weight.shape
        if poses.shape[1:] != (senders, side * side) or activation.shape != poses.shape[:2]:
            raise UsageError(
                f"poses are {tuple(poses.shape)} and activation is {tuple(activation.shape)};"
                f" they must be (batch, {senders}, {side * side}) and (batch, {senders})."
            )
        wide = accumulation_type(poses)
        matrices = bounded(poses.to(wide)).unflatten(-1, (side, side))  # squares of votes must fit
        votes = MatrixVotes(matrices, self.weight.to(wide)).dense().squeeze(1)
        present = activation.to(wide).clamp(0, 1)
        if mask is not None:
            present = present.masked_fill(~mask, 0)
        betas = self.beta_use.to(wide), self.beta_activation.to(wide)

        def fit(cluster: Cluster | None, temperature: float) -> Cluster:
            scores = votes.new_zeros(votes.shape[:-1]) if cluster is None else vote_scores(votes, cluster)
            weights = self.coupling(scores.unsqueeze(1), weight=present[:, None, None]).squeeze(1)
            return fit_clusters(votes, weights, *betas, temperature, self.variance_floor)

        start: Cluster | None = None
        cluster = settle(fit, start, steps=self.temperatures)
        assert cluster is not None
        return Capsules(cluster.mean.to(poses.dtype), cluster.log_activation.exp().to(poses.dtype))

    def forward(self, poses: Tensor, activation: Tensor, mask: Tensor | None = None) -> Tensor:
        parents = self.route(poses, activation, mask)
        return torch.cat((parents.pose, parents.activation.unsqueeze(-1)), -1)

    def extra_repr(self) -> str:
        receivers, senders, side, _ = self.weight.shape
        return f"{senders} -> {receivers}, {side} x {side} poses, steps={len(self.temperatures)}"
