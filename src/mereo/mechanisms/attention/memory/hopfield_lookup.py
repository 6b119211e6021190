"""Hopfield lookup: tokens retrieve from a learned memory.

Source: Ramsauer et al. 2020, arXiv:2008.02217, and the authors' layers.
Cost: as multi-head attention with `num_patterns` senders.
"""

import torch
from torch import Tensor, nn

from mereo.errors import check_positive
from mereo.mechanisms.attention.memory.hopfield import HopfieldAttention


class HopfieldLookup(nn.Module):
    """Look tokens up in a learned memory.

    out = HopfieldAttention(x, M, P) with learned patterns M, and learned P unless it is M

    Args:
        dim, num_heads: see `HopfieldAttention`.
        num_patterns: how many patterns are stored.
        own_values: learn the values that are returned, separately from the patterns.
        beta, steps, norm, normaliser, attn_drop, proj_drop: see `HopfieldAttention`.

    Shapes: tokens (batch, tokens, dim) -> (batch, tokens, dim).

    Reads as: couplings[b, h, r, n] is the share of stored pattern n in the output of token r.

    Deviates: patterns and values start normal with deviation 0.02, as the states of `HopfieldPooling`.

    Reference: arXiv:2008.02217, section 3, "HopfieldLayer".
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        num_patterns: int,
        own_values: bool = False,
        beta: float | None = None,
        steps: int = 1,
        norm: bool = False,
        normaliser: str = "softmax",
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(num_patterns=num_patterns)
        self.hopfield = HopfieldAttention(
            dim,
            num_heads,
            beta=beta,
            steps=steps,
            norm=norm,
            normaliser=normaliser,
            attn_drop=attn_drop,
            proj_drop=proj_drop,
        )
        self.patterns = nn.Parameter(torch.empty(num_patterns, dim))
        nn.init.normal_(self.patterns, std=0.02)
        self.values = nn.Parameter(torch.empty(num_patterns, dim)) if own_values else None
        if self.values is not None:
            nn.init.normal_(self.values, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        shape = (tokens.shape[0], -1, -1)
        values = None if self.values is None else self.values.expand(shape)
        return self.hopfield(tokens, self.patterns.expand(shape), values=values)
