"""RG-LRU, the real-gated linear recurrent unit of Griffin: one state a channel, with gates of the input alone.

Source: arXiv:2402.19427, section 2.4; as one recurrence beside attention arXiv:2405.15731.
Cost: 4 C^2 FLOPs a token for the gates. Read token by token, it carries C numbers.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import mechanism
from mereo.core.recurrence import Recurrence
from mereo.errors import check_positive
from mereo.mechanisms.scan.base import GatedScanMixer, as_heads, from_heads

SHARPNESS = 8.0
"""c of the equation."""
LEAST_INPUT = 1e-12
"""Least square of the factor of the input, below which it has no gradient: the root of 0 has none."""


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return RGLRU(12), (torch.randn(2, 9, 12),)


@mechanism(
    "rg_lru",
    family="scan",
    source="arXiv:2402.19427",
    records="gates",
    promises=("causal", "streaming", "any length", "recurrence"),
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    interface="tokens",
    example=_example,
)
class RGLRU(GatedScanMixer):
    """Let each channel keep a share of its state and add its input with what is left of unit variance.

    a_i = exp(-c softplus(L) sigmoid(W_R u_i + b_R)),   h_i = a_i h_(i-1) + sqrt(1 - a_i^2) sigmoid(W_I u_i + b_I) u_i

    Args:
        dim: size of the tokens.

    Shapes: tokens (batch, tokens, dim) -> (batch, tokens, dim), the states; recorded gates a (batch, dim, tokens, 1).

    Reads as: a gate of 1 keeps the state and takes no input, one of 0 replaces it.

    `step(token, state)` takes one token; the state does not grow.

    Deviates: the unit alone, without the convolution and the gated branch of a Griffin block. Its gates are full
    matrices, where the paper's network has block-diagonal ones.

    Reference: arXiv:2402.19427, equations 1 to 4, c = 8; L starts so that a^c at open gates is uniform in [0.9, 0.999].
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        check_positive(dim=dim)
        self.to_gates = nn.Linear(dim, 2 * dim)
        self.decay = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: decays as above, weights of the gates normal of 1 / sqrt(dim), biases 0."""
        dim = len(self.decay)
        nn.init.normal_(self.to_gates.weight, std=dim**-0.5)
        nn.init.zeros_(self.to_gates.bias)
        with torch.no_grad():
            kept = torch.empty(dim).uniform_(0.9, 0.999)
            self.decay.copy_(torch.expm1(-kept.log() / SHARPNESS).log())

    def terms(self, tokens: Tensor, before: Tensor | None) -> tuple[Recurrence, Tensor | None]:
        recurrent, entering = (as_heads(x, x.shape[-1]) for x in self.to_gates(tokens).sigmoid().chunk(2, -1))
        logs = -SHARPNESS * F.softplus(self.decay).view(-1, 1, 1) * recurrent
        gain = (-torch.expm1(2 * logs)).clamp(min=LEAST_INPUT).sqrt()
        inputs = as_heads(tokens, tokens.shape[-1])
        return Recurrence(logs, gain * entering, torch.ones_like(logs), inputs, None, from_heads), None

    def extra_repr(self) -> str:
        return f"{len(self.decay)}"
