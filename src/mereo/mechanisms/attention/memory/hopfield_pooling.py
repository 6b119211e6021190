"""Hopfield pooling: learned states retrieve from a set of tokens, one result for each state.

Source: Ramsauer et al. 2020, arXiv:2008.02217, and the authors' layers.
Cost: as multi-head attention with `num_queries` receivers.
"""

import torch
from torch import Tensor, nn

from mereo.errors import check_positive
from mereo.mechanisms.attention.memory.hopfield import HopfieldAttention


class HopfieldPooling(nn.Module):
    """Pool tokens: learned states retrieve from them.

    out = HopfieldAttention(Q, x) with learned Q

    Args:
        dim, num_heads: see `HopfieldAttention`.
        num_queries: number of learned states, which is the number of output tokens.
        beta, steps, norm, normaliser, attn_drop, proj_drop: see `HopfieldAttention`.

    Shapes: tokens (batch, tokens, dim), mask (batch, tokens) -> (batch, num_queries, dim).

    Reads as: couplings[b, h, q, s] is the share of token s in pooled token q.

    Deviates: none known; the states start normal with deviation 0.02.

    Reference: arXiv:2008.02217, section 3, "HopfieldPooling".
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        num_queries: int = 1,
        beta: float | None = None,
        steps: int = 1,
        norm: bool = False,
        normaliser: str = "softmax",
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(num_queries=num_queries)
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
        self.queries = nn.Parameter(torch.empty(num_queries, dim))
        nn.init.normal_(self.queries, std=0.02)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.hopfield(self.queries.expand(tokens.shape[0], -1, -1), tokens, mask)
