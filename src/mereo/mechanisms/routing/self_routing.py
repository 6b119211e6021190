"""Self-routing: each child decides from its own pose how much it sends to each parent, without any agreement.

Source: Hahn, Pyeon, Kim, "Self-routing capsule networks", NeurIPS 2019, and the authors' code,
https://github.com/coder3000/SR-CapsNet
Cost: one pass. Gates 2 S R d FLOPs an image, poses 2 S R d D more; without stored votes where these can be streamed.
"""

import torch
from torch import Tensor, nn

from mereo.core import Capsules, Coupling, DenseVotes, bounded, mechanism
from mereo.core.modes import unconverted
from mereo.core.squash import accumulation_type
from mereo.core.window_votes import WindowVotes
from mereo.errors import UsageError, check_not_negative, check_positive
from mereo.mechanisms.routing.vote_routing import VoteRouting, vote_routing

EMPTY = 1e-12
"""Lower bound of a sum of activations, so that inactive children give zeros."""


def shares(activation: Tensor) -> Tensor:
    """Activations divided by their sum over the senders: (batch, senders) -> the same."""
    present = bounded(activation).clamp(min=0)
    return present / present.sum(-1, keepdim=True).clamp(min=EMPTY)


def gate_scores(children: Tensor, gate: Tensor, gate_bias: Tensor) -> Tensor:
    """<G_rs, u_s> + b_rs: children (batch, senders, dim), gate (receivers, senders, dim) -> (batch, 1, receivers,
    senders)."""
    scores = torch.einsum("bsd,rsd->brs", children, gate.to(children.dtype)) + gate_bias.to(children.dtype)
    return scores.to(children.dtype).unsqueeze(1)


def mean_votes(sums: Tensor, total: Tensor) -> Tensor:
    """Sums of weighted votes divided by their weights: (..., pose), (...) -> (..., pose)."""
    return sums / total.clamp(min=EMPTY).unsqueeze(-1)


@vote_routing("self_routing")
class SelfVoteRouting(VoteRouting):
    """Self-routing of the votes that a layer makes: see `SelfRouting` for the equations.

    Each place of a window and type of child has a gate of its own, as in the paper if `compete` is "window".

    Args:
        receivers, senders, pose: as for every `VoteRouting`.
        sender_dim: numbers in the pose of a child; None for the number in a vote.

    Reads as: couplings[b, 0, r, s] is the part of parent r's activation that comes from child s.

    Reference: Hahn, Pyeon, Kim 2019 (NeurIPS).
    """

    needs_activation = reads_children = True

    def __init__(self, receivers: int, senders: int, pose: int, *, sender_dim: int | None = None) -> None:
        super().__init__(receivers, senders, pose)
        self.gate = nn.Parameter(torch.zeros(receivers, senders, sender_dim or pose))
        self.gate_bias = nn.Parameter(torch.zeros(receivers, senders))
        self.coupling = Coupling("receivers")

    def forward(self, votes: WindowVotes, activation: Tensor | None = None) -> Capsules:
        assert activation is not None
        # Where the layer adds coordinates, a child has two more entries in each row, which its gate does not read.
        inner = self.gate.shape[-1] // votes.poses.shape[2]
        scores = gate_scores(votes.poses[..., :inner].flatten(2), self.gate, self.gate_bias)
        couplings = votes.couple(self.coupling, scores, weight=shares(activation)[:, None, None])
        total = couplings.sum(-1)
        return Capsules(mean_votes(votes.combine(couplings), total).squeeze(1), total.squeeze(1))


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return SelfRouting(12, 5, 6, 8), (torch.randn(3, 12, 6), torch.rand(3, 12))


@mechanism(
    "self_routing",
    family="routing",
    over="receivers",
    steps=1,
    values="per pair",
    update="mean of the votes",
    source="https://github.com/coder3000/SR-CapsNet",
    promises=("normalised", "masks", "any sender order", "any receiver order"),
    sender_axes={"0": 1, "1": 1, "gate": 1, "gate_bias": 1, "weight": 1},
    receiver_axes={"gate": 0, "gate_bias": 0, "weight": 0, "output": 1},
    example=_example,
)
class SelfRouting(nn.Module):
    """Send each child to the parents that its own linear gate chooses, like a mixture of experts.

    c_rs = softmax_r(<G_rs, u_s> + b_rs),   w_rs = c_rs a_s / sum_t a_t
    a_r  = sum_s w_rs,                      v_r = sum_s w_rs W_rs^T u_s / a_r

    Args:
        senders, receivers: how many children and parents.
        sender_dim, receiver_dim: their pose sizes; a receiver_dim of 0 gives parents without poses.

    Shapes: poses (batch, senders, sender_dim), activation (batch, senders), at least 0, mask (batch, senders) ->
        (batch, receivers, receiver_dim + 1), poses and then, as the last entry, the activation, which sums to one over
        the parents. `route` gives them apart.

    Reads as: couplings[b, 0, r, s] is the part of parent r's activation that comes from child s.

    Deviates: parents without an active child have an activation and a pose of 0; the authors' code divides 0 by 0.

    Reference: Hahn, Pyeon, Kim 2019 (NeurIPS).
    """

    def __init__(self, senders: int, receivers: int, sender_dim: int, receiver_dim: int) -> None:
        super().__init__()
        check_positive(senders=senders, receivers=receivers, sender_dim=sender_dim)
        check_not_negative(receiver_dim=receiver_dim)
        self.gate = nn.Parameter(torch.zeros(receivers, senders, sender_dim))
        self.gate_bias = nn.Parameter(torch.zeros(receivers, senders))
        self.weight: nn.Parameter | None = None
        if receiver_dim:
            # He's uniform distribution as in the authors' code, with the fan-in of one child's transforms.
            bound = (6 / (receivers * receiver_dim * sender_dim)) ** 0.5
            self.weight = nn.Parameter(torch.empty(receivers, senders, sender_dim, receiver_dim))
            nn.init.uniform_(self.weight, -bound, bound)
        self.coupling = Coupling("receivers")

    def route(self, poses: Tensor, activation: Tensor, mask: Tensor | None = None) -> Capsules:
        """The parents' poses (batch, receivers, receiver_dim) and activations (batch, receivers)."""
        if poses.shape[1:] != self.gate.shape[1:] or activation.shape != poses.shape[:2]:
            senders, dim = self.gate.shape[1:]
            raise UsageError(
                f"poses are {tuple(poses.shape)} and activation is {tuple(activation.shape)};"
                f" they must be (batch, {senders}, {dim}) and (batch, {senders})."
            )
        wide = accumulation_type(poses)
        children = bounded(poses.to(wide))
        present = shares(activation.to(wide) if mask is None else activation.to(wide).masked_fill(~mask, 0))
        with unconverted(poses):
            scores = gate_scores(children, self.gate, self.gate_bias)
        couplings = self.coupling(scores, weight=present[:, None, None])
        total = couplings.sum(-1)
        if self.weight is None:
            return Capsules(poses.new_zeros(*total.squeeze(1).shape, 0), total.squeeze(1).to(poses.dtype))
        with unconverted(poses):
            parents = mean_votes(DenseVotes(children, self.weight.to(wide)).combine(couplings), total)
        return Capsules(parents.squeeze(1).to(poses.dtype), total.squeeze(1).to(poses.dtype))

    def forward(self, poses: Tensor, activation: Tensor, mask: Tensor | None = None) -> Tensor:
        parents = self.route(poses, activation, mask)
        return torch.cat((parents.pose, parents.activation.unsqueeze(-1)), -1)

    def extra_repr(self) -> str:
        receivers, senders, sender_dim = self.gate.shape
        return f"{senders} x {sender_dim} -> {receivers} x {0 if self.weight is None else self.weight.shape[-1]}"
