"""Probabilistic capsules: an encoder that guesses the parents of a pose tree, and descent that improves its guess.

Source: Smith, Schut, Gal, van der Wilk 2020, arXiv:2004.03553.
Cost: of test-time optimisation, a bound and its gradient a step.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from mereo.errors import check_positive
from mereo.generative.belief_ascent import ascend
from mereo.generative.pose_tree import POSE, PoseBelief, PoseTree


class PoseExplanation(NamedTuple):
    """The parents of some images.

    Attributes:
        belief: about their poses and presences.
        routing (batch, children, parents + 1): the probability of each parent of each child; none first.
        elbo (batch,): the evidence lower bound.
        trace (batch, steps + 1): the bound during test-time optimisation, from the encoder's on; empty without it.
    """

    belief: PoseBelief
    routing: Tensor
    elbo: Tensor
    trace: Tensor


class SetEncoder(nn.Module):
    """Beliefs about the parents from a set of children: a layer a child, a mean over those present, a layer.

    h_i = ReLU(B ReLU(A x_i + e_i) + b),   belief = C mean_i h_i + c

    Args:
        children, parents: how many there are.
        hidden: size of both layers.

    Shapes: children (batch, children, 6), mask bool, or the probability of each, (batch, children) -> `PoseBelief`.
    """

    def __init__(self, children: int, parents: int, hidden: int = 64) -> None:
        super().__init__()
        check_positive(children=children, parents=parents, hidden=hidden)
        self.parents = parents
        self.first = nn.Linear(POSE, hidden)
        self.kind = nn.Parameter(hidden**-0.5 * torch.randn(children, hidden))
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, parents * (2 * POSE + 1))

    def forward(self, children: Tensor, mask: Tensor) -> PoseBelief:
        each = self.second((self.first(children) + self.kind).relu()).relu() * mask.unsqueeze(-1)
        pooled = each.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        mean, log_std, logits = self.last(pooled).unflatten(-1, (self.parents, -1)).split((POSE, POSE, 1), -1)
        identity = torch.eye(2, 3, dtype=mean.dtype, device=mean.device).flatten()
        return PoseBelief(identity + mean, log_std - 1, logits.squeeze(-1))


class ProbabilisticCapsules(nn.Module):
    """A `PoseTree` with an encoder; both are learned by ascent on the evidence lower bound, without labels.

    Args:
        children, parents: the number of each; two squares and a triangle have 11 and 3.
        hidden: size of the encoder's layers.
        prior_std, none_std: as for `PoseTree`.

    Shapes: children (batch, children, 3, 3), mask bool (batch, children); see `PoseExplanation`.

    Reads as: couplings[b, t, j, i] is the share of parent j (0: none) in child i, when the parents of the t-th set are
        present.

    Reference: arXiv:2004.03553.
    """

    def __init__(
        self, children: int = 11, parents: int = 3, *, hidden: int = 64, prior_std: float = 1.0, none_std: float = 3.0
    ) -> None:
        super().__init__()
        self.tree = PoseTree(children, parents, prior_std=prior_std, none_std=none_std)
        self.encoder = SetEncoder(children, parents, hidden)

    def encode(self, children: Tensor, mask: Tensor | None = None) -> PoseBelief:
        """The encoder's belief about the parents."""
        return self.encoder(*self.tree.check(children, mask))

    def loss(
        self,
        children: Tensor,
        mask: Tensor | None = None,
        *,
        samples: int = 0,
        temperature: float | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The mean of the negative bound under the encoder's belief, (); options as for `PoseTree.elbo`."""
        belief = self.encode(children, mask)
        bound = self.tree.elbo(children, belief, mask, samples=samples, temperature=temperature, generator=generator)
        return -bound.mean()

    def forward(self, children: Tensor, mask: Tensor | None = None) -> PoseExplanation:
        belief = self.encode(children, mask)
        bound = self.tree.elbo(children, belief, mask)
        return PoseExplanation(
            belief, self.tree.route(children, belief, mask), bound, bound.new_zeros(bound.shape[0], 0)
        )

    def optimise(
        self, children: Tensor, mask: Tensor | None = None, *, steps: int = 100, lr: float = 0.01
    ) -> PoseExplanation:
        """Improve the encoder's belief about each image by Adam on its bound, with all weights frozen.

        The best belief of each image is kept, so the bound is never below the encoder's.

        Args:
            steps: of Adam, at least 1.
            lr: its rate.
        """
        best, highest, trace = ascend(
            lambda *parts: self.tree.elbo(children, PoseBelief(*parts), mask), self.encode(children, mask), steps, lr
        )
        with torch.no_grad():
            routing = self.tree.route(children, PoseBelief(*best), mask)
        return PoseExplanation(PoseBelief(*best), routing, highest, trace)


def prob_capsules_toy() -> ProbabilisticCapsules:
    """The preset for constellations: 3 parents, 11 children, an encoder of two layers of 64; 8,125 parameters."""
    return ProbabilisticCapsules(11, 3, hidden=64)
