"""Combiner over blocks of the same size: the own block directly, every other one as a region.

Source: arXiv:2107.05768, section 4.1.
Cost: N (s + N / s) scores a head for N tokens in blocks of s.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mereo.core.coupling import Coupling
from mereo.core.kernels.attention import attend
from mereo.errors import check_positive
from mereo.mechanisms.attention.sparse.plans.base import Joint, Plan, cut, real, side


@dataclass(frozen=True)
class Fixed(Plan):
    """A token attends to the tokens of its block, and to every other block as one region; to earlier ones if causal.

    Args:
        size: tokens of a block; None for the square root of their number.
    """

    size: int | None = None

    def __post_init__(self) -> None:
        if self.size is not None:
            check_positive(size=self.size)

    def mix(self, given: Joint) -> Tensor:
        batch, heads, tokens, _ = given.q.shape
        size = side(self.size, tokens)
        blocks = -(-tokens // size)
        there = real(tokens, blocks, size, given.q.device)
        q, k, v = (cut(x, blocks, size) for x in (given.q, given.k, given.values))
        partial = None if blocks * size == tokens else there
        of_q, of_k = given.pooled(q, partial), given.pooled(k, partial)
        inside = None if partial is None else partial.unsqueeze(-2)
        of_v = given.within(of_q.unsqueeze(-2), k, v, inside).squeeze(-2)
        # Every block has its own tokens and all regions as senders.
        keys, values = (
            torch.cat((x, r.unsqueeze(2).expand(-1, -1, blocks, -1, -1)), 3) for x, r in ((k, of_k), (v, of_v))
        )
        number, place = torch.arange(blocks, device=q.device), torch.arange(size, device=q.device)
        near = there.unsqueeze(1).expand(-1, size, -1)
        far = number != number.unsqueeze(1)
        if given.causal:
            near = near & (place <= place.unsqueeze(1))
            far = number < number.unsqueeze(1)
        allowed = torch.cat((near, far.unsqueeze(1).expand(-1, size, -1)), -1)
        coupling = Coupling("senders", dropout=given.dropout)
        q, keys, values = (x.flatten(0, 1) for x in (q, keys, values))
        out = attend(q, keys, values, coupling, mask=allowed.unsqueeze(0))
        return out.view(batch, heads, blocks * size, v.shape[-1])[:, :, :tokens]
