"""Combiner over a binary tree: on each level, the block beside the one that holds a token is a region.

Source: arXiv:2107.05768, section 4.2.
Cost: N (1 + log2 N) scores a head for N tokens, and the same number for the summaries.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mereo.mechanisms.attention.sparse.plans.base import Joint, Plan, cut, real


class _Level(NamedTuple):
    """The blocks of one level of the tree.

    Attributes:
        keys, values: of each block as a region, (batch, heads, blocks, dim or any).
        exists: which blocks hold a token, bool (blocks,).
    """

    keys: Tensor
    values: Tensor
    exists: Tensor


def _siblings(x: Tensor, causal: bool) -> Tensor:
    """For each block of a pair its sibling; if it is causal, of the second block only.

    Shapes: (batch, heads, blocks, any) -> (batch, heads, pairs, 2 or 1, any).
    """
    pairs = x.unflatten(2, (x.shape[2] // 2, 2))
    return pairs[:, :, :, :1] if causal else pairs.flip(3)


def _readers(x: Tensor, level: int, causal: bool) -> Tensor:
    """The tokens that read the regions of a level: (batch, heads, pairs, 2 or 1, tokens of a block, any), a view."""
    pairs = x.unflatten(2, (x.shape[2] >> (level + 1), 2, 1 << level))
    return pairs[:, :, :, 1:] if causal else pairs


@dataclass(frozen=True)
class LogSparse(Plan):
    """A token attends to itself, and to those before it in regions of 2^t tokens, one for each 1 in its binary number.

    Token 6 has the regions 0..3 and 4..5, token 7 also 6. If not causal, the tokens behind are cut in the same
    way, from the end of the sequence rounded up to a power of two: all regions are blocks of one binary tree.
    """

    def mix(self, given: Joint) -> Tensor:
        tokens, causal = given.q.shape[2], given.causal
        depth = (tokens - 1).bit_length()
        whole = 1 << depth
        q, k, v = (cut(x, 1, whole)[:, :, 0] for x in (given.q, given.k, given.values))
        there = real(tokens, 1, whole, q.device)[0]
        levels = self._levels(given, q, k, v, there, depth)
        # Items of the joint softmax: the token itself, and one region for each level.
        scores = [(q * k).sum(-1, keepdim=True) * given.scale]
        exists = [there.new_ones(whole, 1)]
        for number, level in enumerate(levels):
            readers = _readers(q, number, causal)
            among = given.scale * (readers * _siblings(level.keys, causal).unsqueeze(-2)).sum(-1, keepdim=True)
            seen = level.exists.view(-1, 2).flip(1).unsqueeze(-1).expand(-1, -1, 1 << number)
            if causal:
                among = torch.cat((torch.zeros_like(among), among), 3)
                seen = seen & torch.tensor([False, True], device=q.device).unsqueeze(-1)
            scores.append(among.flatten(2, 4))
            exists.append(seen.reshape(whole, 1))
        weights = given.weigh([(torch.cat(scores, -1), torch.cat(exists, -1))])[0]
        out = weights[..., :1] * v
        for number, level in enumerate(levels):
            share = _readers(weights[..., number + 1 : number + 2], number, causal)
            _readers(out, number, causal).addcmul_(share, _siblings(level.values, causal).unsqueeze(-2))
        return out[:, :, :tokens]

    def _levels(self, given: Joint, q: Tensor, k: Tensor, v: Tensor, there: Tensor, depth: int) -> list[_Level]:
        """Every block of every level below the root; a block of one token is that token."""
        levels = [_Level(k, v, there)] if depth else []
        for level in range(1, depth):
            blocks, inside = there.shape[0] >> level, there.view(-1, 1 << level)
            own_q, own_k, own_v = (x.unflatten(2, (blocks, 1 << level)) for x in (q, k, v))
            of_q, of_k = given.pooled(own_q, inside), given.pooled(own_k, inside)
            of_v = given.within(of_q.unsqueeze(-2), own_k, own_v, inside.unsqueeze(-2)).squeeze(-2)
            levels.append(_Level(of_k, of_v, inside.any(-1)))
        return levels
