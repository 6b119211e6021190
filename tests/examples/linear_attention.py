"""Causal linear attention: a sum of outer products is the state; a token reads what stands in it so far.

Source: arXiv:2006.16236, eq. 16 to 20.
Cost: 4 N D^2 FLOPs for N tokens; here every state is kept, N D^2 numbers, a chunked scan keeps fewer.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Signal, mechanism
from mereo.core.recurrence import Recurrence
from mereo.errors import check_positive


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return LinearAttention(6), (torch.randn(2, 5, 6),)


@mechanism(
    "linear_attention",
    family="scan",
    source="arXiv:2006.16236",
    records="states",
    promises=("causal", "streaming", "any length", "recurrence"),
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    largest_input=1e8,  # a query reads a state of keys times values: three inputs are multiplied
    example=_example,
)
class LinearAttention(nn.Module):
    """Let each token read a state in which all tokens up to it were added up.

    S_t = S_t-1 + phi(k_t) v_t^T,   out_t = phi(q_t)^T S_t,   phi(x) = elu(x) + 1

    Args:
        dim: size of the tokens.

    Shapes: tokens (batch, tokens, dim) -> (batch, tokens, dim); states (batch, tokens, dim, dim).

    Deviates: without the paper's normaliser, as in later work (arXiv:2102.11174).
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        check_positive(dim=dim)
        self.query, self.key, self.value = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.states = Signal("states")

    def forward(self, tokens: Tensor) -> Tensor:
        keys = F.elu(self.key(tokens)) + 1
        states = self.states(torch.einsum("bnd,bne->bnde", keys, self.value(tokens)).cumsum(1))
        return torch.einsum("bnd,bnde->bne", F.elu(self.query(tokens)) + 1, states)

    def step(self, token: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """One position: (batch, dim) and the state before it -> (batch, dim) and the state after it."""
        added = (F.elu(self.key(token)) + 1).unsqueeze(2) * self.value(token).unsqueeze(1)
        state = added if state is None else state + added
        return torch.einsum("bd,bde->be", F.elu(self.query(token)) + 1, state), state

    def recurrence(self, tokens: Tensor) -> Recurrence:
        """Lambda = 1, B_i = phi(k_i), C_i = phi(q_i), one head."""
        keys, queries = F.elu(self.key(tokens)) + 1, F.elu(self.query(tokens)) + 1
        kept = torch.zeros_like(keys[:, None, :, :1])
        return Recurrence(
            kept, keys[:, None], queries[:, None], self.value(tokens)[:, None], None, lambda y: y.squeeze(1)
        )
