"""Self-routing: each child decides from its own pose how much it sends to each parent, without any agreement.

Source: Hahn, Pyeon, Kim, "Self-routing capsule networks", NeurIPS 2019, and the authors' code,
https://github.com/coder3000/SR-CapsNet
Cost: one pass. Gates 2 S R d FLOPs an image, poses 2 S R d D more; without stored votes where these can be streamed.
"""

import torch
from torch import Tensor, nn

from mereo.core import Capsules, Coupling, DenseVotes, bounded, mechanism
from mereo.core.squash import accumulation_type
from mereo.core.tiles import Tiles
from mereo.errors import UsageError, check_positive

EMPTY = 1e-12
"""What a sum of activations counts as at the least, so that children of which none is active give zeros."""


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return SelfRouting(12, 5, 6, 8), (torch.randn(3, 12, 6), torch.rand(3, 12))


@mechanism(
    "self_routing",
    family="routing",
    over="receivers",
    steps=1,
    says="a vote per pair",
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

    Reference: Hahn, Pyeon, Kim 2019, equations 3 to 6.
    """

    def __init__(self, senders: int, receivers: int, sender_dim: int, receiver_dim: int) -> None:
        super().__init__()
        check_positive(senders=senders, receivers=receivers, sender_dim=sender_dim)
        if receiver_dim < 0:
            raise UsageError(f"receiver_dim is {receiver_dim}; it must be at least 0.")
        self.gate = nn.Parameter(torch.zeros(receivers, senders, sender_dim))
        self.gate_bias = nn.Parameter(torch.zeros(receivers, senders))
        self.weight: nn.Parameter | None = None
        if receiver_dim:
            # He's uniform distribution as the authors' code has it, whose fan-in is that of one child's transforms.
            bound = (6 / (receivers * receiver_dim * sender_dim)) ** 0.5
            self.weight = nn.Parameter(torch.empty(receivers, senders, sender_dim, receiver_dim))
            nn.init.uniform_(self.weight, -bound, bound)
        self.coupling = Coupling("receivers")

    def route(
        self, poses: Tensor, activation: Tensor, mask: Tensor | None = None, *, tiles: Tiles | None = None
    ) -> Capsules:
        """The parents' poses (batch, receivers, receiver_dim) and activations (batch, receivers).

        Args:
            tiles: where the batch is of the windows of a convolution, which capsules of the maps each window holds.
        """
        if poses.shape[1:] != self.gate.shape[1:] or activation.shape != poses.shape[:2]:
            senders, dim = self.gate.shape[1:]
            raise UsageError(
                f"poses are {tuple(poses.shape)} and activation is {tuple(activation.shape)};"
                f" they must be (batch, {senders}, {dim}) and (batch, {senders})."
            )
        wide = accumulation_type(poses)
        children, present = bounded(poses.to(wide)), bounded(activation.to(wide)).clamp(min=0)
        if mask is not None:
            present = present.masked_fill(~mask, 0)
        share = present / present.sum(-1, keepdim=True).clamp(min=EMPTY)
        scores = torch.einsum("bsd,rsd->brs", children, self.gate.to(wide)) + self.gate_bias.to(wide)
        couplings = self.coupling(scores.to(wide).unsqueeze(1), weight=share[:, None, None], tiles=tiles)
        total = couplings.sum(-1)
        if self.weight is None:
            return Capsules(poses.new_zeros(*total.squeeze(1).shape, 0), total.squeeze(1).to(poses.dtype))
        sums = DenseVotes(children, self.weight.to(wide)).combine(couplings)
        parents = sums / total.clamp(min=EMPTY).unsqueeze(-1)
        return Capsules(parents.squeeze(1).to(poses.dtype), total.squeeze(1).to(poses.dtype))

    def forward(self, poses: Tensor, activation: Tensor, mask: Tensor | None = None) -> Tensor:
        parents = self.route(poses, activation, mask)
        return torch.cat((parents.pose, parents.activation.unsqueeze(-1)), -1)

    def extra_repr(self) -> str:
        receivers, senders, sender_dim = self.gate.shape
        return f"{senders} x {sender_dim} -> {receivers} x {0 if self.weight is None else self.weight.shape[-1]}"
