"""Vote attention: the votes of all children attend to each other, and parents are the squashed means, in one pass.

Source: Pucci, Micheloni, Martinel 2021 (ICCV workshops), https://air.uniud.it/handle/11390/1221110, by our reading of
its abstract: in place of routing, a layer of self-attention suppresses irrelevant votes.
Cost: votes S R d D multiply-adds an image, attention 9/8 S^2 R D + 5/4 S (R D)^2. Votes are kept, (batch, S, R D); a
map of S x S couplings is made only if S is small, or if it is needed.
"""

import torch
from torch import Tensor, nn

from mereo.core import Coupling, DenseVotes, GivenVotes, SameVotes, bounded, mechanism, squash
from mereo.errors import check_choice, check_positive
from mereo.mechanisms.attention.dense.position_attention import PositionAttention


class ChildAttention(PositionAttention):
    """Position attention whose places are children, each with its votes for all parents as channels.

    Shapes: votes (batch, children, dim) -> the same; couplings (batch, groups, children, children).
    """

    def forward(self, votes: Tensor) -> Tensor:
        return votes + self.gather(votes)

    def votes(self, votes: Tensor) -> SameVotes:
        """The contribution of each child to every other, times its coupling; contributions are averaged over heads."""
        _, _, values = self.project(votes)
        values = self.gamma.view(-1, 1, 1) * values
        # Each group has channels of its own; the channels of the others are zero.
        own = torch.eye(self.groups, dtype=values.dtype, device=values.device) * self.groups
        return SameVotes(torch.einsum("bgnc,gh->bgnhc", values, own).flatten(3))


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return VoteAttentionRouting(7, 3, 4, 5), (torch.randn(2, 7, 4),)


@mechanism(
    "vote_attention",
    family="routing",
    over="senders",
    steps=2,
    values="per pair",
    update="squash",
    source="https://air.uniud.it/handle/11390/1221110",
    reconstruction="only the abstract was available",
    promises=("normalised", "any sender order"),
    sender_axes={"0": 1, "weight": 1},
    interface="tokens",
    example=_example,
)
class VoteAttentionRouting(nn.Module):
    """Route children to parents in one pass: children attend to each other's votes, and a parent is their mean.

    u_s = [W_1s^T c_s, ..., W_Rs^T c_s],   y_s = u_s + gamma sum_t A_st v(u_t),   parent_r = squash(mean_s y_rs)

    with A and v of `PositionAttention`, whose gamma starts at 0.

    Args:
        senders, receivers: how many children and parents.
        sender_dim, receiver_dim: their pose sizes.
        per_class: the votes for each parent attend by themselves, with weights of their own; otherwise all votes of a
            child attend together, for all parents.
        reduce: "mean" or "sum" of the votes. With "sum" and gamma = 0 every vote counts whole, as in
            `DynamicRouting(steps=0)`.

    Shapes: children (batch, senders, sender_dim) -> (batch, receivers, receiver_dim).

    Reads as: attention.coupling[b, 0, r, s] is the share of child s in what is added to the votes of child r, and
        coupling[b, 0, r, s] the weight of the vote of child s, after attention, for parent r: the same for all.

    Deviates: shapes inside are ours; the paper was not available.

    Reference: Pucci, Micheloni, Martinel 2021, the abstract.
    """

    def __init__(
        self,
        senders: int,
        receivers: int,
        sender_dim: int,
        receiver_dim: int,
        *,
        per_class: bool = False,
        reduce: str = "mean",
    ) -> None:
        super().__init__()
        check_positive(senders=senders, receivers=receivers, sender_dim=sender_dim, receiver_dim=receiver_dim)
        check_choice("reduce", reduce, ("mean", "sum"))
        self.reduce = reduce
        self.weight = nn.Parameter(torch.empty(receivers, senders, sender_dim, receiver_dim))
        nn.init.normal_(self.weight, std=0.1)
        self.attention = ChildAttention(receivers * receiver_dim, groups=receivers if per_class else 1)
        self.coupling = Coupling("senders")

    def votes(self, children: Tensor) -> GivenVotes:
        """The votes of each child for each parent, after attention."""
        receivers, *_, dim = self.weight.shape
        # In half precision votes may be infinite, and differences of such votes NaN.
        made = bounded(DenseVotes(children, self.weight, method="stored").dense().squeeze(1))
        attended = bounded(self.attention(made.transpose(1, 2).flatten(2)))
        return GivenVotes(attended.unflatten(2, (receivers, dim)).transpose(1, 2).unsqueeze(1))

    def forward(self, children: Tensor) -> Tensor:
        receivers, senders, *_ = self.weight.shape
        votes = self.votes(children)
        weight = children.new_full((), senders) if self.reduce == "sum" else None
        couplings = self.coupling(children.new_zeros(children.shape[0], 1, receivers, senders), weight=weight)
        return squash(votes.combine(couplings)).squeeze(1)

    def extra_repr(self) -> str:
        receivers, senders, sender_dim, receiver_dim = self.weight.shape
        return f"{senders} x {sender_dim} -> {receivers} x {receiver_dim}, reduce={self.reduce!r}"
