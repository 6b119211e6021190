"""Quasi-LSTM: an LSTM whose gates depend on the input alone, a linear recurrence; its forget gate may be like S6's.

Source: arXiv:2405.15731 and its code; gates of the input alone are from arXiv:1611.01576.
Cost: 2 (3 C H + 3 H^2 + 4 H) FLOPs a token, H = expansion * C. Read token by token, it carries 4 H numbers.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import mechanism
from mereo.core.recurrence import Recurrence
from mereo.errors import check_choice, check_positive
from mereo.mechanisms.scan.base import GatedScanMixer, as_heads, from_heads

WIDTH = 4
"""Tokens of the convolution."""
GATES = ("sigmoid", "exponential")


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return QuasiLSTM(12), (torch.randn(2, 9, 12),)


@mechanism(
    "quasi_lstm",
    family="scan",
    source="arXiv:2405.15731",
    records="gates",
    promises=("causal", "streaming", "any length", "recurrence"),
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    largest_input=1e15,  # the states are multiplied by a gate that grows with the input, and must fit float32
    interface="tokens",
    example=_example,
)
class QuasiLSTM(GatedScanMixer):
    """Mix tokens by an LSTM without recurrent weights, behind a short convolution and beside a gate.

    [g, z] = W_in u,   x = conv(z),   f, i, o = W_g x + b,   h_t = a_t h_(t-1) + sigmoid(i_t) x_t,   y = W_out (gelu(g) sigmoid(o) h)

    sigmoid:   a = sigmoid(f)                            exponential:   a = sigmoid(-f)^relu(alpha) = exp(-relu(alpha) softplus(f))

    Args:
        dim: size of the tokens, C.
        expansion: H / C, for H states.
        gate: form of the forget gate, "sigmoid" as in an LSTM or "exponential" as in S6, with a learned scalar alpha.

    Shapes: tokens (batch, tokens, dim) -> (batch, tokens, dim); recorded gates a (batch, H, tokens, 1).

    Reads as: a gate of 1 keeps the state, one of 0 forgets it.

    `step(token, state)` takes one token; the state and the last three inputs of the convolution do not grow.

    Deviates: alpha exists only with the exponential gate, as it is not used otherwise.

    Reference: arXiv:2405.15731. Weights normal of 1 / sqrt(inputs), alpha = 1.
    """  # noqa: E501

    def __init__(self, dim: int, expansion: int = 2, *, gate: str = "sigmoid") -> None:
        super().__init__()
        check_positive(dim=dim, expansion=expansion)
        check_choice("gate", gate, GATES)
        hidden = dim * expansion
        self.inner = nn.Linear(dim, 2 * hidden, bias=False)
        self.conv = nn.Conv1d(hidden, hidden, WIDTH, groups=hidden)
        self.to_gates = nn.Linear(hidden, 3 * hidden)
        self.alpha = nn.Parameter(torch.ones(())) if gate == "exponential" else None
        self.proj = nn.Linear(hidden, dim, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: linear layers normal of 1 / sqrt(inputs), the others as PyTorch does."""
        self.conv.reset_parameters()
        self.to_gates.reset_parameters()
        for layer in (self.inner, self.to_gates, self.proj):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
        if self.alpha is not None:
            nn.init.ones_(self.alpha)

    @property
    def before(self) -> tuple[int, int]:
        return WIDTH - 1, self.conv.in_channels

    def terms(self, tokens: Tensor, before: Tensor | None) -> tuple[Recurrence, Tensor | None]:
        gate, inputs = self.inner(tokens).chunk(2, -1)
        inputs = F.pad(inputs, (0, 0, WIDTH - 1, 0)) if before is None else torch.cat((before, inputs), 1)
        # A convolution has no empty output.
        x = self.conv(inputs.transpose(1, 2)).transpose(1, 2) if tokens.shape[1] else inputs[:, :0]
        forget, entering, leaving = (as_heads(each, x.shape[-1]) for each in self.to_gates(x).chunk(3, -1))
        logs = F.logsigmoid(forget) if self.alpha is None else -F.relu(self.alpha) * F.softplus(forget)
        return Recurrence(
            logs, entering.sigmoid(), leaving.sigmoid(), as_heads(x, x.shape[-1]), None,
            lambda out: self.proj(F.gelu(gate) * from_heads(out)),
        ), inputs[:, -(WIDTH - 1):]  # fmt: skip

    def extra_repr(self) -> str:
        return f"{self.inner.in_features}, gate={GATES[self.alpha is not None]!r}"
