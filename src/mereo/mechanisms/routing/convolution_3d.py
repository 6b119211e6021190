"""Routing by 3-D convolution: each type of child votes for a whole map of parents, all types by one kernel.

Source: Rajasegaran, Jayasundara, Jayasekara, Jayasekara, Seneviratne, Rodrigo 2019, arXiv:1904.09546, and the authors'
code.
Cost: votes 2 I H W k^2 d J n FLOPs an image for I types of children of d numbers and J types of parents of n; each pass
4 I J n H W more. The votes are kept.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Coupling, bounded, depends, iterate_agreement, mechanism, squash
from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_positive, check_steps


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Convolution3DRouting(4, 3, 2), (torch.randn(3, 5, 4, 4, 3),)


@mechanism(
    "convolution_3d",
    family="routing",
    over="receivers",
    steps=depends("steps", 3),
    values="per pair",
    update="squash",
    source="arXiv:1904.09546",
    promises=("normalised", "any sender order", "any receiver order", "any length"),
    sender_axes={"0": 1},
    receiver_axes={"weight": 0, "bias": 0, "output": 1},
    example=_example,
)
class Convolution3DRouting(nn.Module):
    """Divide each type of children among all parents of a map, by the agreement of its votes with them.

    V_i = conv(u_i), one kernel for all types i: what a 3-D convolution makes of the map with types and dimensions as
        its depth, with a kernel as deep as a capsule and steps of that size
    b = 0;  `steps` times:  c_i = softmax over parents and positions of b_i,   s_j = sum_i c_ij V_ij + B_j,
        v_j = squash(s_j) over dimensions and positions jointly,   b_ij += <V_ij, v_j> at every position

    Args:
        sender_dim: numbers in the pose of a child.
        receivers, receiver_dim: types of parents, and their pose size.
        kernel, stride: of the convolution, whose maps are padded by kernel // 2.
        steps: evaluations of the couplings, at least 1. Gradients flow through all of them.

    Shapes: maps (batch, types, sender_dim, rows, columns) -> (batch, receivers, receiver_dim, rows', columns').

    Reads as: couplings[b, 0, r, s] is the share that type s of children gives to parent r, which are numbered by type,
        row and column.

    Deviates: the authors' code reshapes its maps before the convolution without moving the axes of types and dimensions
        to the front, which mixes them with positions; here types are convolved, as the paper says. Their squash divides
        by zero where all votes are zero.

    Reference: arXiv:1904.09546.
    """

    def __init__(
        self, sender_dim: int, receivers: int, receiver_dim: int, *, kernel: int = 3, stride: int = 1, steps: int = 3
    ) -> None:
        super().__init__()
        check_positive(sender_dim=sender_dim, receivers=receivers, receiver_dim=receiver_dim)
        check_positive(kernel=kernel, stride=stride)
        check_steps(1, steps=steps)
        self.stride, self.steps = stride, steps
        self.weight = nn.Parameter(torch.empty(receivers, receiver_dim, sender_dim, kernel, kernel))
        nn.init.normal_(self.weight, std=(2 / (sender_dim * kernel * kernel)) ** 0.5)
        self.bias = nn.Parameter(torch.full((receivers, receiver_dim), 0.1))
        self.coupling = Coupling("receivers")

    def votes_of(self, maps: Tensor) -> Tensor:
        """The votes of each type of children: (batch, types, receivers, receiver_dim, rows', columns')."""
        receivers, dim, sender_dim, kernel, _ = self.weight.shape
        if maps.dim() != 5 or maps.shape[2] != sender_dim:
            raise UsageError(f"maps are {tuple(maps.shape)}; they must be (batch, types, {sender_dim}, rows, columns).")
        folded = F.conv2d(bounded(maps).flatten(0, 1), self.weight.flatten(0, 1), None, self.stride, kernel // 2)
        return folded.unflatten(1, (receivers, dim)).unflatten(0, maps.shape[:2])

    def forward(self, maps: Tensor) -> Tensor:
        votes, wide = self.votes_of(maps), accumulation_type(maps)
        receivers, dim, rows, columns = votes.shape[2:]
        # (batch, receivers, dim, positions, types): sums over types, and over dimensions, are along one axis each.
        flat = votes.to(wide).flatten(4).movedim(1, -1)
        bias = self.bias.to(wide).unsqueeze(-1)

        def exchange(agreed: Tensor | None) -> Tensor:
            if agreed is None:
                scores = flat.new_zeros(1).expand(flat.shape[0], receivers * rows * columns, flat.shape[-1])
            else:
                scores = (flat * agreed.unflatten(2, (dim, -1)).unsqueeze(-1)).sum(2).flatten(1, 2)
            couplings = self.coupling(scores.unsqueeze(1)).squeeze(1).unflatten(1, (receivers, 1, -1))
            return ((flat * couplings).sum(-1) + bias).flatten(2)

        parents = iterate_agreement(exchange, squash, self.steps)
        return parents.unflatten(2, (dim, rows, columns)).to(maps.dtype)

    def extra_repr(self) -> str:
        receivers, dim, sender_dim, kernel, _ = self.weight.shape
        return f"{sender_dim} -> {receivers} x {dim}, kernel={kernel}, stride={self.stride}, steps={self.steps}"
