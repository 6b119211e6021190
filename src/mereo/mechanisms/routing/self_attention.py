"""Self-attention routing: one pass; a child's weight for a parent is the agreement of its vote with the sum of all
votes.

Source: Mazzia, Salvetti, Chiaberge 2021, arXiv:2101.12491 and the authors' code.
Cost: votes 2 S R d D FLOPs an image, agreement and combination 4 S R D: the Gram matrix of votes is never made.
"""

import torch
from torch import Tensor, nn

from mereo.core import Capsules, Coupling, DenseVotes, lengths, mechanism, squash_exponential
from mereo.core.window_votes import WindowVotes
from mereo.errors import check_positive
from mereo.mechanisms.routing.vote_routing import VoteRouting, vote_routing


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return SelfAttentionRouting(12, 5, 6, 8), (torch.randn(3, 12, 6),)


@mechanism(
    "self_attention",
    family="routing",
    over="receivers",
    steps=1,
    values="per pair",
    update="exponential squash",
    source="arXiv:2101.12491",
    promises=("normalised", "any sender order", "any receiver order"),
    sender_axes={"0": 1, "weight": 1, "log_prior": 1},
    receiver_axes={"weight": 0, "log_prior": 0, "output": 1},
    interface="tokens",
    example=_example,
)
class SelfAttentionRouting(nn.Module):
    """Route children to parents in one pass, by the agreement of each vote with all votes for the same parent.

    A_rs = sum_t <vote_rs, vote_rt> / sqrt(D) = <vote_rs, sum_t vote_rt> / sqrt(D)
    v_r  = squash_exponential( sum_s (softmax_r(A)_rs + b_rs) vote_rs )

    Args:
        senders, receivers: how many children and parents.
        sender_dim, receiver_dim: their pose sizes.

    Shapes: children (batch, senders, sender_dim) -> (batch, receivers, receiver_dim).

    Reads as: couplings[b, 0, r, s] is the share of its vote that child s gives to parent r, the learned b included.

    Deviates: none. The paper speaks of self-attention over the children; its code takes the softmax over the parents
        and adds the log-prior b after it, so that the weights need not sum to one.

    Reference: arXiv:2101.12491.
    """

    def __init__(self, senders: int, receivers: int, sender_dim: int, receiver_dim: int) -> None:
        super().__init__()
        check_positive(senders=senders, receivers=receivers, sender_dim=sender_dim, receiver_dim=receiver_dim)
        self.weight = nn.Parameter(torch.empty(receivers, senders, sender_dim, receiver_dim))
        self.log_prior = nn.Parameter(torch.zeros(receivers, senders))
        self.coupling = Coupling("receivers")
        # He normal, truncated at two standard deviations; fan-in as Keras counts it for a 4-D kernel.
        std = (2 / (receivers * senders * sender_dim)) ** 0.5 / 0.87962566
        nn.init.trunc_normal_(self.weight, std=std, a=-2 * std, b=2 * std)

    def votes(self, children: Tensor) -> DenseVotes:
        """The votes of each child for each parent."""
        # They are used three times, so storing them is cheaper.
        return DenseVotes(children, self.weight, method="stored")

    def forward(self, children: Tensor) -> Tensor:
        votes = self.votes(children)
        scores = votes.agree(votes.dense().sum(3)) * self.weight.shape[-1] ** -0.5
        return squash_exponential(votes.combine(self.coupling(scores, offset=self.log_prior))).squeeze(1)

    def extra_repr(self) -> str:
        receivers, senders, sender_dim, receiver_dim = self.weight.shape
        return f"{senders} x {sender_dim} -> {receivers} x {receiver_dim}"


@vote_routing("self_attention")
class SelfAttentionVoteRouting(VoteRouting):
    """Self-attention routing of the votes that a layer makes; activations are lengths; the activations of children
    are not used.

    Args:
        receivers, senders, pose: as for every `VoteRouting`.

    Reads as: couplings[b, 0, r, s] is the share of its vote that child s gives to parent r, the learned b included.

    Reference: arXiv:2101.12491.
    """

    def __init__(self, receivers: int, senders: int, pose: int) -> None:
        super().__init__(receivers, senders, pose)
        self.log_prior = nn.Parameter(torch.zeros(receivers, senders))
        self.coupling = Coupling("receivers")

    def forward(self, votes: WindowVotes, activation: Tensor | None = None) -> Capsules:
        scores = votes.agree(votes.sum()) * self.pose**-0.5
        couplings = votes.couple(self.coupling, scores, offset=self.log_prior)
        poses = squash_exponential(votes.combine(couplings)).squeeze(1)
        return Capsules(poses, lengths(poses))
