"""The base of routings of matrix capsules: transforms of every pair, and parents that are clusters of the votes."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from mereo.core import Capsules, Coupling, bounded
from mereo.core.modes import unconverted
from mereo.core.squash import accumulation_type
from mereo.core.window_votes import WindowVotes
from mereo.errors import UsageError
from mereo.mechanisms.routing.vote_routing import VoteRouting


class Clusters(nn.Module):
    """Fits a cluster of votes for each parent; a subclass defines how.

    Attributes:
        options: of the routing; they have `steps`.
        beta_use, beta_activation (receivers,): cost of a vote, and what a parent's activation starts from.
        coupling: how much each parent takes of each child.
    """

    coupling: Coupling
    options: Any

    def _prepare(self, receivers: int, options: Any) -> None:
        """Make the learned parameters."""
        self.options = options
        self.beta_use = nn.Parameter(torch.zeros(receivers))
        self.beta_activation = nn.Parameter(torch.zeros(receivers))
        self.coupling = Coupling("receivers")

    @abstractmethod
    def fit_parents(self, votes: WindowVotes, present: Tensor) -> Capsules:
        """The parents of every window: poses (batch * windows, receivers, pose), activations without the last axis.

        Args:
            votes: of the children.
            present (batch * windows, senders): activations of the children, in [0, 1].
        """


class ClusterVoteRouting(Clusters, VoteRouting):
    """The clusters of votes that a layer makes."""

    needs_activation = True

    def forward(self, votes: WindowVotes, activation: Tensor | None = None) -> Capsules:
        assert activation is not None
        return self.fit_parents(votes, activation.clamp(0, 1))


class MatrixRouting(Clusters):
    """The clusters of the votes V_rs = M_s W_rs, a product of matrices for every pair.

    Attributes:
        weight (receivers, senders, side, side): W.

    Shapes: poses (batch, senders, side * side), matrices row by row; activation (batch, senders) in [0, 1]; mask
        (batch, senders) -> (batch, receivers, side * side + 1), poses and then, as the last entry, the activation.
    """

    weight: nn.Parameter

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
        present = activation.to(wide).clamp(0, 1)
        if mask is not None:
            present = present.masked_fill(~mask, 0)
        with unconverted(poses):
            parents = self.fit_parents(WindowVotes(matrices, self.weight.to(wide)), present)
        return Capsules(parents.pose.to(poses.dtype), parents.activation.to(poses.dtype))

    def forward(self, poses: Tensor, activation: Tensor, mask: Tensor | None = None) -> Tensor:
        parents = self.route(poses, activation, mask)
        return torch.cat((parents.pose, parents.activation.unsqueeze(-1)), -1)

    def extra_repr(self) -> str:
        receivers, senders, side, _ = self.weight.shape
        return f"{senders} -> {receivers}, {side} x {side} poses, steps={self.options.steps}"
