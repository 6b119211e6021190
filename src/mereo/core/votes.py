"""Votes: what every sender says to every receiver, as a linear operator.

The tensor of votes (batch, heads, receivers, senders, pose) is large and rarely needed whole. What mechanisms need is

    combine(C)[b, h, r, :] = sum_s C[b, h, r, s] vote[b, h, r, s, :]         what the receivers become
    agree(P)[b, h, r, s]   = <P[b, h, r, :], vote[b, h, r, s, :]>            how well each vote fits its receiver

two linear maps that are adjoint to each other: <combine(C), P> = <C, agree(P)>. Three kinds of vote:

    DenseVotes    vote[r, s] = W[r, s]^T u[s]     a transform of its own for every pair (capsules)
    SharedVotes   vote[r, s] = W[r]^T u[s]        one transform a receiver, shared by all senders
    SameVotes     vote[r, s] = value[s]           the same to all (attention)
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from mereo.core.squash import bounded


class Votes(ABC):
    """The linear operator from couplings to receivers and its adjoint.

    Shapes: couplings and scores (batch, heads, receivers, senders); receivers (batch, heads, receivers, pose).
    """

    @abstractmethod
    def combine(self, couplings: Tensor) -> Tensor:
        """Sum of the votes, weighted by the couplings: (batch, heads, receivers, pose)."""

    @abstractmethod
    def agree(self, receivers: Tensor) -> Tensor:
        """Inner product of every vote with its receiver: (batch, heads, receivers, senders)."""

    @abstractmethod
    def dense(self) -> Tensor:
        """The votes themselves: (batch, heads, receivers, senders, pose)."""


class _StoredVotes(Votes):
    """Votes that are kept as a tensor (batch, heads, receivers, senders, pose)."""

    def __init__(self, votes: Tensor) -> None:
        self._votes = votes

    def combine(self, couplings: Tensor) -> Tensor:
        return (couplings.unsqueeze(-2) @ self._votes).squeeze(-2)

    def agree(self, receivers: Tensor) -> Tensor:
        return (self._votes @ receivers.unsqueeze(-1)).squeeze(-1)

    def dense(self) -> Tensor:
        return self._votes


class DenseVotes(_StoredVotes):
    """vote[b, r, s] = W[r, s]^T u[b, s]: a transform of its own for every pair.

    Shapes: senders (batch, senders, d_in), weight (receivers, senders, d_in, d_out); one head.
    """

    def __init__(self, senders: Tensor, weight: Tensor) -> None:
        super().__init__(torch.einsum("bsd,rsde->brse", bounded(senders), weight).unsqueeze(1))


class SharedVotes(_StoredVotes):
    """vote[b, r, s] = W[r]^T u[b, s]: one transform a receiver, shared by all senders.

    Shapes: senders (batch, senders, d_in), weight (receivers, d_in, d_out); one head.
    """

    def __init__(self, senders: Tensor, weight: Tensor) -> None:
        super().__init__(torch.einsum("bsd,rde->brse", bounded(senders), weight).unsqueeze(1))


class SameVotes(Votes):
    """vote[b, h, r, s] = value[b, h, s]: every sender says the same to all.

    Shapes: values (batch, heads, senders, pose); the number of receivers is that of the couplings.
    """

    def __init__(self, values: Tensor) -> None:
        self._values = values

    def combine(self, couplings: Tensor) -> Tensor:
        return couplings @ self._values

    def agree(self, receivers: Tensor) -> Tensor:
        return receivers @ self._values.transpose(-1, -2)

    def dense(self) -> Tensor:
        """(batch, heads, 1, senders, pose): the axis of receivers has one entry, for it is the same for all."""
        return self._values.unsqueeze(2)
