"""Attention inside blocks of a sequence: a token attends to its own block and to the neighbouring blocks.

Source: arXiv:2003.05997, section 3, and the code it extends: local attention of Parmar et al. 2018, arXiv:1802.05751.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Coupling
from mereo.core.kernels.attention import attend
from mereo.core.tiles import Tiles
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
    batch, tokens = q.shape[0], q.shape[2]
    block = min(block, tokens)
    blocks, behind = -(-tokens // block), 1 if causal else 2
    extra = blocks * block - tokens
    tiles_q = F.pad(q, (0, 0, 0, extra)).unflatten(2, (blocks, block))
    around = (
        F.pad(x, (0, 0, block, extra + (behind - 1) * block)).unfold(2, (1 + behind) * block, block) for x in (k, v)
    )
    tiles_k, tiles_v = (x.mT for x in around)
    device = q.device
    receivers = torch.arange(blocks * block, device=device).view(blocks, block)
    senders = block * torch.arange(-1, blocks - 1, device=device).unsqueeze(1)
    senders = senders + torch.arange((1 + behind) * block, device=device)
    offsets = senders[0] - receivers[0].unsqueeze(1)
    there = ((senders >= 0) & (senders < tokens)).unsqueeze(1)
    if causal:
        there = there & (offsets <= 0)
    there = there.expand(blocks, block, -1).unsqueeze(1)
    if mask is None:
        allowed = there.repeat(batch, 1, 1, 1)
    else:
        seen = mask[:, senders.clamp(0, tokens - 1)].unsqueeze(2).unsqueeze(2)
        allowed = (seen & there).flatten(0, 1)
    tiles = None
    if coupling.watched:
        tiles = Tiles(
            torch.where(receivers < tokens, receivers, -1),
            torch.where((senders >= 0) & (senders < tokens), senders, -1), tokens, tokens,
        )  # fmt: skip
    bias = None if positions is None else positions(offsets).to(q.dtype)
    tiled_q, tiled_k, tiled_v = (x.transpose(1, 2).flatten(0, 1) for x in (tiles_q, tiles_k, tiles_v))
    out = attend(tiled_q, tiled_k, tiled_v, coupling, mask=allowed, bias=bias, tiles=tiles)
    return out.unflatten(0, (batch, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :tokens]
