"""Additive attention: scores come from a small network over a query and a key.

Source: arXiv:1409.0473, appendix A.1.2.
Cost: the score network takes 2 N S D FLOPs and as much memory, against none of the latter for inner products.
"""

import torch
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.errors import check_positive


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return AdditiveAttention(6, 8), (torch.randn(2, 5, 6), torch.randn(2, 7, 6))


@mechanism(
    "additive_attention",
    family="dense attention",
    over="senders",
    values="shared",
    update="identity",
    source="arXiv:1409.0473",
    promises=("normalised", "masks", "any sender order", "any receiver order", "any length"),
    sender_axes={"1": 1},
    receiver_axes={"0": 1, "output": 1},
    example=_example,
)
class AdditiveAttention(nn.Module):
    """Let each query become the mean of the context, weighted by a network that compares the two.

    out_r = sum_s softmax_s(w^T tanh(A q_r + B k_s)) k_s

    Args:
        dim: size of queries and of the context.
        hidden: width of the network that compares them.

    Shapes: queries (batch, receivers, dim), context (batch, senders, dim), mask bool (batch, senders)
        -> (batch, receivers, dim).

    Reads as: couplings[b, 0, r, s] is the share of sender s in receiver r.
    """

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        check_positive(dim=dim, hidden=hidden)
        self.query, self.key = nn.Linear(dim, hidden), nn.Linear(dim, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)
        self.coupling = Coupling("senders")

    def forward(self, queries: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = self.query(queries).unsqueeze(2) + self.key(context).unsqueeze(1)
        scores = self.score(hidden.tanh()).squeeze(-1).unsqueeze(1)
        couplings = self.coupling(scores, None if mask is None else mask[:, None, None])
        return couplings.squeeze(1) @ context
