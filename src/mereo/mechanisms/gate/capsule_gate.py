"""Capsule gate: each capsule is made longer by its share of one attention over all capsules.

Source: ours, for the attention on capsules of doi:10.1038/s41598-020-68453-w (DA-CapsNet), whose equations were not
available; the scores are from arXiv:1703.03130, eq. 5, in one row.
Cost: N d (hidden + 2) + N hidden multiply-adds an image (N capsules of d numbers).
"""

import torch
from torch import Tensor, nn

from mereo.core import Coupling, Signal, mechanism
from mereo.errors import check_positive


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return CapsuleGate(6), (torch.randn(2, 7, 6),)


@mechanism(
    "capsule_gate",
    family="gate",
    over="senders",
    values="shared",
    update="gate",
    source="doi:10.1038/s41598-020-68453-w",
    reconstruction="the equations were not available",
    also_records=("gates",),
    promises=("normalised", "any sender order", "any receiver order", "any length"),
    lacks={"couplings only": "a capsule without a share passes as it is"},
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    interface="tokens",
    example=_example,
)
class CapsuleGate(nn.Module):
    """Multiply each capsule by a factor that grows with its share of one attention over all capsules.

    a = softmax over the capsules i of w . tanh(W u_i),   out_i = u_i (1 + N a_i gamma)

    Equal shares, N a_i = 1, change all capsules by the same factor; gamma starts at 0.

    Args:
        dim: pose size of the capsules.
        hidden: size of W u; `dim` by default.

    Shapes: capsules (batch, N, dim) -> the same; couplings (batch, 1, 1, N), gates (batch, N, 1).

    Reads as: couplings[b, 0, 0, s] is the share of capsule s, and gates[b, s, 0] its factor.
    """

    def __init__(self, dim: int, hidden: int | None = None) -> None:
        super().__init__()
        hidden = dim if hidden is None else hidden
        check_positive(dim=dim, hidden=hidden)
        self.first, self.second = nn.Linear(dim, hidden, bias=False), nn.Linear(hidden, 1, bias=False)
        for layer in (self.first, self.second):
            nn.init.xavier_uniform_(layer.weight)
        self.gamma = nn.Parameter(torch.zeros(1))
        self.coupling, self.gates = Coupling("senders"), Signal("gates")

    def forward(self, capsules: Tensor) -> Tensor:
        scores = self.second(self.first(capsules).tanh())
        shares = self.coupling(scores.mT.unsqueeze(1)).squeeze(1).mT
        return capsules * self.gates(1 + capsules.shape[1] * shares * self.gamma)
