"""SSD, the selective state space of Mamba-2: one decay for the whole state of a head, so that it is linear attention.

Source: arXiv:2405.21060; as one recurrence beside attention arXiv:2405.15731.
Cost: 2 C (2 N + H + C) FLOPs a token for projections, states of N and H heads, and 2 (2 C N + b (H N + C)) for the scan
by blocks of b tokens. Read token by token, it carries C N numbers.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import mechanism
from mereo.core.recurrence import Recurrence
from mereo.errors import check_heads, check_positive
from mereo.mechanisms.scan.base import GatedScanMixer, as_heads, from_heads, normal_weights, step_sizes


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return SSD(12, 3, state_dim=4), (torch.randn(2, 9, 12),)


@mechanism(
    "ssd",
    family="scan",
    source="arXiv:2405.21060",
    records="gates",
    promises=("causal", "streaming", "any length", "recurrence"),
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    largest_input=1e6,  # step sizes, inputs and readouts are multiplied, and must fit float32
    interface="tokens",
    example=_example,
)
class SSD(GatedScanMixer):
    """Let each head read a state that decays and learns by a step size of the token.

    Delta_i = softplus(w_h^T u_i + bias_h),   Lambda_i = exp(-a_h Delta_i),   b_i, c_i = W u_i

    h_i = Lambda_i h_(i-1) + Delta_i b_i u_i^T,   y_i = W_o (c_i^T h_i + D u_i)   for each head

    Args:
        dim: size of the tokens, C.
        num_heads: states with a decay of their own; divides `dim`.
        state_dim: states of each channel, N.

    Shapes: tokens (batch, tokens, dim) -> (batch, tokens, dim); recorded gates (batch, num_heads, tokens, 1).

    Reads as: c_i^T b_j Delta_j times the gates after j is the attention of token i to token j, not normalised.

    `step(token, state)` takes one token; the state does not grow.

    Deviates: the scan alone, without the convolution, the norm and the gate of a Mamba-2 block. The code of
    arXiv:2405.15731 has one step size for all channels with a bias for each; here each head has its step size.

    Reference: arXiv:2405.21060, section 7; it starts as `S6` does, with a = 1.
    """

    def __init__(self, dim: int, num_heads: int = 1, *, state_dim: int = 16) -> None:
        super().__init__()
        check_positive(dim=dim, state_dim=state_dim)
        check_heads(dim, num_heads)
        self.num_heads, self.state_dim = num_heads, state_dim
        self.to_terms = nn.Linear(dim, num_heads + 2 * state_dim, bias=False)
        self.step_bias, self.a_log = (nn.Parameter(torch.empty(num_heads)) for _ in range(2))
        self.D = nn.Parameter(torch.empty(dim))
        self.proj = nn.Linear(dim, dim, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: a and D are 1, steps log-uniform from 0.001 to 0.1, weights normal of 0.02."""
        normal_weights(self.to_terms, self.proj)
        nn.init.zeros_(self.a_log)
        nn.init.ones_(self.D)
        with torch.no_grad():
            self.step_bias.copy_(step_sizes(self.num_heads))

    def terms(self, tokens: Tensor, before: Tensor | None) -> tuple[Recurrence, Tensor | None]:
        steps, b, c = self.to_terms(tokens).split([self.num_heads, self.state_dim, self.state_dim], -1)
        delta = F.softplus(steps + self.step_bias).transpose(1, 2).unsqueeze(-1)  # (batch, heads, tokens, 1)
        return Recurrence(
            -delta * self.a_log.exp().view(-1, 1, 1), delta * b.unsqueeze(1), c.unsqueeze(1),
            as_heads(tokens, self.num_heads), self.D.view(self.num_heads, 1, -1),
            lambda out: self.proj(from_heads(out)),
        ), None  # fmt: skip

    def extra_repr(self) -> str:
        return f"{len(self.D)}, num_heads={self.num_heads}, state_dim={self.state_dim}"
