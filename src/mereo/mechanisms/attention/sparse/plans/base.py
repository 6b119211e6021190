"""The base of plans, summaries of regions, and the softmax over direct tokens and regions together.

Source: Ren, H. Dai, Z. Dai, Yang, Leskovec, Schuurmans, B. Dai 2021, arXiv:2107.05768, sections 3 and 4.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

POOLS = ("max", "mean")


@dataclass(frozen=True)
class Joint:
    """One call of a plan; all tensors float32 or wider.

    Attributes:
        q, k: (batch, heads, tokens, dim).
        v: (batch, heads, tokens, pose).
        causal: whether tokens behind the query are left out.
        pool: how queries and keys of a region become one: "max" or "mean".
        dropout: probability with which a weight of the joint softmax is dropped.
        project: for the plan that has learned keys of regions, values of regions (batch, heads, tokens, pose) -> keys
            (batch, heads, tokens, dim).
        carried: the values that are mixed, (batch, heads, tokens, any); `v` unless it is given.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    causal: bool
    pool: str = "max"
    dropout: float = 0.0
    project: Callable[[Tensor], Tensor] | None = None
    carried: Tensor | None = None

    @property
    def values(self) -> Tensor:
        """The values that are mixed."""
        return self.v if self.carried is None else self.carried

    @property
    def scale(self) -> float:
        """1 / sqrt(dim)."""
        return float(self.q.shape[-1] ** -0.5)

    def weigh(self, parts: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """Softmax over all parts together, with dropout.

        Args:
            parts: scores (..., items) and a mask that is broadcastable to them, of direct tokens and of regions.
        """
        scores = torch.cat([s.masked_fill(~there, torch.finfo(s.dtype).min) for s, there in parts], -1)
        weights = F.dropout(scores.softmax(-1), self.dropout, self.dropout > 0)
        return list(weights.split([s.shape[-1] for s, _ in parts], -1))

    def within(self, q: Tensor, k: Tensor, values: Tensor, there: Tensor | None) -> Tensor:
        """The expectation of each region's values: softmax(q_R k_j / sqrt(dim)) over its members.

        Shapes: q (..., regions, dim), k (..., members, dim), values (..., members, any), there bool, broadcastable to
            (..., regions, members), None if everything is -> (..., regions, any); any finite value for a region
            without members.
        """
        scores = (q * self.scale) @ k.mT
        if there is None:
            return scores.softmax(-1) @ values
        return scores.masked_fill(~there, torch.finfo(scores.dtype).min).softmax(-1) @ values

    def pooled(self, x: Tensor, there: Tensor | None) -> Tensor:
        """One vector for the members that exist: x (..., members, dim), mask (..., members) -> (..., dim), or 0."""
        if there is None:
            return x.mean(-2) if self.pool == "mean" else x.amax(-2)
        there = there.unsqueeze(-1)
        if self.pool == "mean":
            return (x * there).sum(-2) / there.sum(-2).clamp(min=1)
        most = x.masked_fill(~there, torch.finfo(x.dtype).min).amax(-2)
        return most.masked_fill(~there.any(-2), 0)

    def running(self, x: Tensor, there: Tensor) -> Tensor:
        """One vector for the members up to each one: as `pooled`, but (..., members, dim)."""
        there = there.unsqueeze(-1)
        if self.pool == "mean":
            return (x * there).cumsum(-2) / there.cumsum(-2).clamp(min=1)
        return x.masked_fill(~there, torch.finfo(x.dtype).min).cummax(-2).values.masked_fill(there.cumsum(-2) == 0, 0)

    def before(self, x: Tensor, there: Tensor) -> Tensor:
        """One vector for the members before each one; 0 before the first."""
        return F.pad(self.running(x, there)[..., :-1, :], (0, 0, 1, 0))

    def after(self, x: Tensor, there: Tensor) -> Tensor:
        """One vector for the members behind each one; 0 behind the last."""
        return self.before(x.flip(-2), there.flip(-1)).flip(-2)

    def others(self, x: Tensor, there: Tensor) -> Tensor:
        """One vector for the members before each one if this is causal, else for all but each one."""
        before = self.before(x, there)
        if self.causal:
            return before
        after, one = self.after(x, there), there.unsqueeze(-1).to(x.dtype)
        earlier, later = one.cumsum(-2) - one, one.flip(-2).cumsum(-2).flip(-2) - one
        if self.pool == "mean":
            return (before * earlier + after * later) / (earlier + later).clamp(min=1)
        both = torch.maximum(before, after)
        return torch.where(earlier == 0, after, torch.where(later == 0, before, both))


class Plan(ABC):
    """For each token, a partition of all tokens that it may attend to: direct tokens, and regions."""

    @abstractmethod
    def mix(self, given: Joint) -> Tensor:
        """The expectation of the values under the factorised attention: (batch, heads, tokens, any)."""


def cut(x: Tensor, rows: int, columns: int) -> Tensor:
    """Tokens as rows: (batch, heads, tokens, dim) -> (batch, heads, rows, columns, dim), padded by zeros."""
    return F.pad(x, (0, 0, 0, rows * columns - x.shape[2])).unflatten(2, (rows, columns))


def real(tokens: int, rows: int, columns: int, device: torch.device) -> Tensor:
    """Which entries of `cut` are tokens: bool (rows, columns)."""
    return (torch.arange(rows * columns, device=device) < tokens).view(rows, columns)


def side(size: int | None, tokens: int) -> int:
    """The given size, at most the number of tokens; else the square root of that number, where the cost is least."""
    return min(size, tokens) if size is not None else max(1, round(tokens**0.5))
