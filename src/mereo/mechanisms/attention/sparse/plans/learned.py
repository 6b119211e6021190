"""Combiner over regions that are given, such as clusters of the tokens' content.

Source: arXiv:2107.05768, section 4.4.
Cost: N (M + R) scores a head for N tokens in R regions of at most M.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mereo.errors import UsageError
from mereo.mechanisms.attention.sparse.plans.base import Joint, Plan


@dataclass(frozen=True, eq=False)
class Learned(Plan):
    """A token attends to the tokens of its region, and to every other region as a whole; to their past if causal.

    Args:
        regions: the region of each token, int64 (tokens,), (batch, tokens) or (batch, heads, tokens), from 0.
    """

    regions: Tensor

    def __post_init__(self) -> None:
        if self.regions.dtype not in (torch.int64, torch.int32) or not 1 <= self.regions.dim() <= 3:
            raise UsageError(
                f"regions are {self.regions.dtype} with {self.regions.dim()} axes; they must be int64 (tokens,),"
                " (batch, tokens) or (batch, heads, tokens)."
            )
        if self.regions.numel() and self.regions.min() < 0:
            raise UsageError(f"regions have the number {int(self.regions.min())}; they are counted from 0.")

    def mix(self, given: Joint) -> Tensor:
        batch, heads, tokens, _ = given.q.shape
        ids = self.regions.long().to(given.q.device)
        if ids.shape[-1] != tokens:
            raise UsageError(f"regions are of {ids.shape[-1]} tokens, and there are {tokens}.")
        ids = ids.view(*(1,) * (3 - ids.dim()), *ids.shape) if ids.dim() != 2 else ids.unsqueeze(1)
        ids = ids.expand(batch, heads, tokens)
        one = torch.nn.functional.one_hot(ids)  # (batch, heads, tokens, regions)
        regions, counts = one.shape[-1], one.cumsum(2)
        place = counts.gather(3, ids.unsqueeze(-1)).squeeze(-1) - 1  # number of the token in its region
        most = int(place.max()) + 1
        slot = ids * most + place
        lists = torch.full((batch, heads, regions * most), tokens, device=ids.device)
        lists = lists.scatter(2, slot, torch.arange(tokens, device=ids.device).expand_as(slot))
        there = (lists < tokens).unflatten(2, (regions, most))

        def listed(x: Tensor) -> Tensor:
            picked = lists.clamp(max=tokens - 1).unsqueeze(-1).expand(-1, -1, -1, x.shape[-1])
            return x.gather(2, picked).unflatten(2, (regions, most))

        q, k, v = listed(given.q), listed(given.k), listed(given.values)
        other = ~torch.eye(regions, dtype=torch.bool, device=ids.device)
        near = there.unsqueeze(-2)
        if given.causal:
            at = torch.arange(most, device=ids.device)
            near = near & (at <= at.unsqueeze(1))
            of_k = given.running(k, there)
            of_v = given.within(given.running(q, there), k, v, near)
            # The past of a region is summarised at the last of its tokens that is not behind the query.
            last = listed(counts) - 1  # (batch, heads, regions, most, regions)
            far = (last >= 0) & other.unsqueeze(1)
            from_each = (torch.arange(regions, device=ids.device) * most + last.clamp(min=0)).flatten(2)

            def summaries(x: Tensor) -> Tensor:
                index = from_each.unsqueeze(-1).expand(-1, -1, -1, x.shape[-1])
                return x.flatten(2, 3).gather(2, index).unflatten(2, last.shape[2:])

            scores = (summaries(of_k) @ q.unsqueeze(-1)).squeeze(-1)
            direct, region = given.weigh([(given.scale * q @ k.mT, near), (given.scale * scores, far)])
            out = direct @ v + (region.unsqueeze(-2) @ summaries(of_v)).squeeze(-2)
        else:
            of_q, of_k = given.pooled(q, there), given.pooled(k, there)
            of_v = given.within(of_q.unsqueeze(-2), k, v, near).squeeze(-2)
            far = (other & there.any(-1).unsqueeze(-2)).unsqueeze(-2)
            scores = q @ of_k.unsqueeze(2).mT
            direct, region = given.weigh([(given.scale * q @ k.mT, near), (given.scale * scores, far)])
            out = direct @ v + region @ of_v.unsqueeze(2)
        return out.flatten(2, 3).gather(2, slot.unsqueeze(-1).expand(-1, -1, -1, out.shape[-1]))
