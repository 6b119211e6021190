"""Mixer gating: an MLP-Mixer layer reads all tokens and makes the factors of a linear projection of them.

Source: Abdullah, Aydin 2024, arXiv:2403.02411 (NiNformer), section 3; equations from the authors' code.
Cost: 2 N f C + 2 N C f + N C^2 multiply-adds an image (N tokens, C channels, f hidden units of both parts).
"""

import torch
from torch import Tensor, nn

from mereo.core import Signal, mechanism
from mereo.errors import check_positive, check_probability


class TokenLinear(nn.Linear):
    """W z + b along the tokens, from the left, so that nothing is transposed.

    Shapes: tokens (batch, in_features, dim) -> (batch, out_features, dim).
    """

    def forward(self, tokens: Tensor) -> Tensor:
        return self.weight @ tokens + self.bias[:, None]


class Mixing(nn.Module):
    """dropout(second(dropout(gelu(first(z))))), of two layers along tokens or along channels.

    Shapes: the output has the shape of z; the second layer returns to the width that the first one reads.
    """

    def __init__(self, first: nn.Linear, second: nn.Linear, dropout: float) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.activation, self.dropout = nn.GELU(), nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.dropout(self.activation(self.first(tokens)))
        mixed: Tensor = self.dropout(self.second(hidden))
        return mixed


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return MixerGate(4, 3, hidden_dim=8), (torch.randn(2, 3, 4),)


@mechanism(
    "mixer_gate",
    family="gate",
    source="arXiv:2403.02411",
    records="gates",
    largest_input=1e15,  # gates times projections must fit float32
    interface="tokens",
    example=_example,
)
class MixerGate(nn.Module):
    """Multiply a projection of each token by what an MLP-Mixer layer makes of all tokens.

    m = z + token_mixing(norm_t z),   g = m + feed_forward(norm_c m),   out = (W z + b) * g

    Args:
        dim: channels.
        num_tokens: how many tokens there are; the weights that mix tokens are made for this number.
        hidden_dim: hidden units of both parts of the Mixer.
        dropout: in both parts, after the activation and at the end.

    Shapes: tokens (batch, num_tokens, dim) -> the same; gates likewise.

    Reads as: gates[b, n, c] is the factor of channel c of token n; it may have any size and sign.

    Reference: arXiv:2403.02411, section 3.
    """

    def __init__(self, dim: int, num_tokens: int, hidden_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        check_positive(dim=dim, num_tokens=num_tokens, hidden_dim=hidden_dim)
        check_probability(dropout=dropout)
        self.token_norm, self.channel_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        along_tokens = TokenLinear(num_tokens, hidden_dim), TokenLinear(hidden_dim, num_tokens)
        self.token_mixing = Mixing(*along_tokens, dropout)
        self.channel_mixing = Mixing(nn.Linear(dim, hidden_dim), nn.Linear(hidden_dim, dim), dropout)
        self.proj = nn.Linear(dim, dim)
        self.gates = Signal("gates")

    def mix(self, tokens: Tensor) -> Tensor:
        """The Mixer layer, which makes the gates: (batch, num_tokens, dim) -> the same."""
        mixed = tokens + self.token_mixing(self.token_norm(tokens))
        return mixed + self.channel_mixing(self.channel_norm(mixed))

    def forward(self, tokens: Tensor) -> Tensor:
        gates: Tensor = self.gates(self.mix(tokens))
        return self.proj(tokens) * gates
