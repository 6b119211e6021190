"""Mean-agreement routing: one pass; a child counts for the parent whose mean vote is nearest to its own vote.

Source: arXiv:1710.09829, procedure 1, stopped after the first agreement.
Cost: votes 2 S R d D FLOPs an image, agreement and combination 4 S R D.
"""

import torch
from torch import Tensor, nn

from mereo.core import Coupling, mechanism, squash
from mereo.errors import check_positive


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return MeanAgreementRouting(7, 4, 5, 6), (torch.randn(3, 7, 5),)


@mechanism(
    "mean_agreement",
    family="routing",
    over="receivers",
    values="per pair",
    update="squash",
    source="arXiv:1710.09829",
    promises=("normalised", "any sender order", "any receiver order"),
    sender_axes={"0": 1, "weight": 1},
    receiver_axes={"weight": 0, "output": 1},
    example=_example,
)
class MeanAgreementRouting(nn.Module):
    """Route children to parents in one pass, by the agreement of each vote with the mean vote.

    m_r = squash(mean_s W_rs^T u_s),   c = softmax_r(<W_rs^T u_s, m_r>),   v_r = squash(sum_s c_rs W_rs^T u_s)

    Args:
        senders, receivers: how many children and parents.
        sender_dim, receiver_dim: their pose sizes.

    Shapes: children (batch, senders, sender_dim) -> (batch, receivers, receiver_dim).

    Reads as: couplings[b, 0, r, s] is the share of its vote that child s gives to parent r.
    """

    def __init__(self, senders: int, receivers: int, sender_dim: int, receiver_dim: int) -> None:
        super().__init__()
        check_positive(senders=senders, receivers=receivers, sender_dim=sender_dim, receiver_dim=receiver_dim)
        self.weight = nn.Parameter(sender_dim**-0.5 * torch.randn(receivers, senders, sender_dim, receiver_dim))
        self.coupling = Coupling("receivers")

    def forward(self, children: Tensor) -> Tensor:
        votes = torch.einsum("bsd,rsde->brse", squash(children), self.weight)
        scores = torch.einsum("brse,bre->brs", votes, squash(votes.mean(2)))
        couplings = self.coupling(scores.unsqueeze(1)).squeeze(1)
        return squash(torch.einsum("brs,brse->bre", couplings, votes))
