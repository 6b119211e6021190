"""S6, the selective state space of Mamba: step size, input and readout depend on the token, decay on channel and state.

Source: arXiv:2312.00752, algorithm 2; as one recurrence beside attention arXiv:2405.15731.
Cost: 2 C (2 N + R) + 2 C^2 FLOPs a token for projections, states of N and step sizes of rank R, 6 C N for the scan, and
C N numbers a token in training, C in the compiled form. Read token by token, it carries C N numbers.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import mechanism
from mereo.core.recurrence import Recurrence
from mereo.errors import check_positive
from mereo.mechanisms.scan.base import GatedScanMixer, from_heads, normal_weights, step_sizes


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return S6(12, 4), (torch.randn(2, 9, 12),)


@mechanism(
    "s6",
    family="scan",
    source="arXiv:2312.00752",
    records="gates",
    promises=("causal", "streaming", "any length", "recurrence"),
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    largest_input=1e6,  # step sizes, inputs and readouts are multiplied, and must fit float32
    interface="tokens",
    aliases=("selective_scan",),
    example=_example,
)
class S6(GatedScanMixer):
    """Let each channel read a state of its own that decays and learns by a step size of the token.

    Delta_i = softplus(W_D W_x u_i + bias),   A = -exp(A_log),   b_i, c_i = W_x u_i

    h_i[c,n] = exp(Delta_i[c] A[c,n]) h_(i-1)[c,n] + Delta_i[c] b_i[n] u_i[c],   y_i = W_o (sum_n c_i[n] h_i[.,n] + D u_i)

    Args:
        dim: size of the tokens, C.
        state_dim: states of each channel, N.
        rank: of the step sizes, R; ceil(dim / 16) by default.

    Shapes: tokens (batch, tokens, dim) -> (batch, tokens, dim); recorded gates (batch, dim, tokens, state_dim).

    Reads as: a gate of 1 keeps a state, one of 0 forgets it. Delta is in both: a token with a small step changes nothing.

    `step(token, state)` takes one token; the state does not grow.

    Deviates: the scan alone, without the convolution and the gate of a Mamba block, as arXiv:2405.15731 compares it.
    Weights start normal of 0.02, without the smaller start of the output by depth that networks of many layers use.

    Reference: arXiv:2312.00752, section 3; the start of A, D and of the step sizes is from its code.
    """  # noqa: E501

    def __init__(self, dim: int, state_dim: int = 16, *, rank: int | None = None) -> None:
        super().__init__()
        rank = math.ceil(dim / 16) if rank is None else rank
        check_positive(dim=dim, state_dim=state_dim, rank=rank)
        self.rank, self.state_dim = rank, state_dim
        self.to_terms = nn.Linear(dim, rank + 2 * state_dim, bias=False)
        self.to_steps = nn.Linear(rank, dim)
        self.A_log, self.D = nn.Parameter(torch.empty(dim, state_dim)), nn.Parameter(torch.empty(dim))
        self.proj = nn.Linear(dim, dim, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: A = -1 .. -N, D = 1, steps log-uniform from 0.001 to 0.1, other weights normal of 0.02."""
        normal_weights(self.to_terms, self.proj)
        nn.init.uniform_(self.to_steps.weight, -(self.rank**-0.5), self.rank**-0.5)
        nn.init.ones_(self.D)
        with torch.no_grad():
            self.to_steps.bias.copy_(step_sizes(len(self.D)))
            self.A_log.copy_(torch.arange(1, self.state_dim + 1).log())

    def terms(self, tokens: Tensor, before: Tensor | None) -> tuple[Recurrence, Tensor | None]:
        steps, b, c = self.to_terms(tokens).split([self.rank, self.state_dim, self.state_dim], -1)
        # By the other function, because the compiled gradient of softplus takes no gradient with its axes exchanged.
        delta = -F.logsigmoid(-self.to_steps(steps)).transpose(1, 2).unsqueeze(-1)  # (batch, dim, tokens, 1)
        A = -self.A_log.exp().unsqueeze(1).unsqueeze(0)
        return Recurrence(
            A, b.unsqueeze(1), c.unsqueeze(1), tokens.transpose(1, 2).unsqueeze(-1), self.D.view(-1, 1, 1),
            lambda out: self.proj(from_heads(out)), steps=delta,
        ), None  # fmt: skip

    def extra_repr(self) -> str:
        return f"{len(self.D)}, state_dim={self.state_dim}"
