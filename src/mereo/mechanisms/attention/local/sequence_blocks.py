"""Attention inside blocks of a sequence: a token attends to its own block and to the neighbouring blocks.

Source: arXiv:2003.05997, section 3, and the code it extends: local attention of Parmar et al. 2018, arXiv:1802.05751.
"""

import torch
from torch import Tensor, nn

from mereo.core import Coupling
from mereo.core.kernels.exchange import Exchange, exchange
from mereo.core.topology import SequenceBlocks
from mereo.errors import check_positive


class SequencePositions(nn.Module):
    """A learned bias for each head and each distance at which a token of a block sees another.

    Args:
        heads: of the attention.
        block: tokens of a block.
        causal: whether only distances back exist.

    Shapes: offsets int64 (...), sender minus receiver -> (heads, ...).
    """

    def __init__(self, heads: int, block: int, causal: bool) -> None:
        super().__init__()
        self.first = 1 - 2 * block
        self.table = nn.Parameter(torch.empty(heads, 2 * block if causal else 4 * block - 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: normal of 0.02."""
        nn.init.normal_(self.table, std=0.02)

    def forward(self, offsets: Tensor) -> Tensor:
        return self.table[:, (offsets - self.first).clamp(0, self.table.shape[1] - 1)]


def attend_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block: int,
    coupling: Coupling,
    causal: bool = False,
    positions: SequencePositions | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Each token attends to its block and the one before; unless the attention is causal, also to the next one.

    Args:
        block: tokens of a block; the last one may be shorter.
        coupling: makes the couplings; recorded over all tokens.
        positions: adds biases by distance.
        mask: bool (batch, tokens), True = takes part.

    Shapes: q, k (batch, heads, tokens, dim), v (batch, heads, tokens, pose) -> (batch, heads, tokens, pose).
    """
    check_positive(block=block)
    topology = SequenceBlocks(q.shape[2], min(block, q.shape[2]), causal)
    bias = None if positions is None else lambda receiver, sender: positions(sender - receiver)
    given = Exchange(q, k, v, topology, coupling, q.shape[-1] ** -0.5, bias=bias, mask=mask)
    return exchange(given, "tiles")[0]
