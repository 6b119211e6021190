"""Combiner over a binary tree: for each level, the sibling of the block that a token is in is a region.

Source: arXiv:2107.05768, section 4.2.
Cost: N (1 + log2 N) scores a head for N tokens, and as many for the summaries.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mereo.attention.sparse.plans.base import Joint, Plan, cut, real


@dataclass(frozen=True)
class LogSparse(Plan):
    """A token attends to itself, and to the tokens before it by regions of 2^t, the binary digits of its number.

    Token 6 has the regions 0..3 and 4..5, token 7 also 6. Where it is not causal, the tokens behind are cut in the same
    way, from the end of the sequence rounded up to a power of two: all regions are blocks of one binary tree.
    """

    def mix(self, given: Joint) -> Tensor:
        q, k, v = given.q, given.k, given.values
        tokens, device = q.shape[2], q.device
        levels = (tokens - 1).bit_length()
        whole = 2**levels
        padded = [cut(x, 1, whole)[:, :, 0] for x in (q, k, v)]
        there = real(tokens, 1, whole, device)[0]
        own = (padded[0] * padded[1]).sum(-1, keepdim=True) * given.scale
        parts, summaries = [(own, there.new_ones(1))], []
        for level in range(levels):
            blocks = [x.unflatten(2, (-1, 2**level)) for x in padded]
            inside = there.view(-1, 2**level)
            if level:
                of_q, of_k = given.pooled(blocks[0], inside), given.pooled(blocks[1], inside)
                of_v = given.within(of_q.unsqueeze(-2), blocks[1], blocks[2], inside.unsqueeze(-2)).squeeze(-2)
            else:
                of_k, of_v = padded[1], padded[2]
            pairs = padded[0].unflatten(2, (-1, 2, 2**level))
            siblings = of_k.unflatten(2, (-1, 2)).flip(3)
            exists = inside.any(-1).view(-1, 2).flip(1)
            if given.causal:
                # Only the second block of a pair has its sibling before it.
                scores = (pairs[:, :, :, 1] * siblings[:, :, :, 1].unsqueeze(-2)).sum(-1).unsqueeze(3)
                scores = torch.cat((torch.zeros_like(scores), scores), 3)
                exists = exists & torch.tensor([False, True], device=device)
            else:
                scores = (pairs * siblings.unsqueeze(-2)).sum(-1)
            allowed = exists.unsqueeze(-1).expand(-1, -1, 2**level).reshape(-1, 1)
            parts.append(((scores * given.scale).flatten(2).unsqueeze(-1), allowed))
            summaries.append(of_v)
        first, *weights = given.weigh(parts)
        out = first * padded[2]
        for level, (weight, of_v) in enumerate(zip(weights, summaries, strict=True)):
            siblings = of_v.unflatten(2, (-1, 2)).flip(3).unsqueeze(-2)
            shares = weight.unflatten(2, (-1, 2, 2**level))
            if given.causal:
                out = out.unflatten(2, (-1, 2, 2**level))
                before, behind = out.unbind(3)
                behind = behind + shares[:, :, :, 1] * siblings[:, :, :, 1]
                out = torch.stack((before, behind), 3).flatten(2, 4)
            else:
                out = out + (shares * siblings).flatten(2, 4)
        return out[:, :, :tokens]
