"""Votes of every sender for every receiver, as a lazy linear operator.

The tensor of votes (batch, heads, receivers, senders, pose) is large and rarely needed as such. Mechanisms need

    combine(C)[b, h, r, :] = sum_s C[b, h, r, s] vote[b, h, r, s, :]         what the receivers become
    agree(P)[b, h, r, s]   = <P[b, h, r, :], vote[b, h, r, s, :]>            how well each vote fits its receiver

two linear maps that are adjoint to each other: <combine(C), P> = <C, agree(P)>. Five kinds of vote:

    DenseVotes    vote[r, s] = W[r, s]^T u[s]     a transform of its own for every pair (capsules)
    SharedVotes   vote[r, s] = W[r]^T u[s]        one transform a receiver, shared by all senders
    MatrixVotes   vote[r, s] = U[s] W[r, s]       poses and transforms are matrices (EM routing)
    SameVotes     vote[r, s] = value[s]           the same to all (attention)
    GivenVotes    vote[r, s]                      made by the caller

`GivenVotes` exist as a tensor already; `JoinedVotes` concatenate the votes of several sets of senders, which may be
of different kinds and pose sizes.

Constructing votes computes nothing. `method` chooses how the verbs are executed: "stored" computes the tensor of votes
when it is first needed and keeps it, "streamed" never computes it (`mereo.core.kernels.votes`: compiled C++, or a tile
of senders at a time). "auto" streams wherever our own operators can run, unless the tensor already exists.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from mereo.core.kernels import votes as kernels
from mereo.core.kernels.methods import cannot_run_here
from mereo.core.kernels.transforms import fallback_reason
from mereo.core.squash import bounded
from mereo.errors import UsageError, check_choice

METHODS = ("auto", "stored", "streamed")


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

    @abstractmethod
    def select(self, samples: Tensor, receivers: Tensor) -> Tensor:
        """The votes for one receiver of one sample each, and no others.

        Shapes: samples and receivers int64 (pairs,) -> (pairs, heads, senders, pose).
        """


class _StoredVotes(Votes):
    """Votes whose verbs are sums over the tensor of votes, which is computed when first needed and then kept."""

    def __init__(self) -> None:
        self._stored: Tensor | None = None
        self._with_gradient = False

    @abstractmethod
    def _make(self) -> Tensor:
        """The tensor of votes: (batch, heads, receivers, senders, pose)."""

    def dense(self) -> Tensor:
        # Votes computed under no_grad have no gradient, so they cannot be used where one is needed.
        if self._stored is None or (torch.is_grad_enabled() and not self._with_gradient):
            self._stored, self._with_gradient = self._make(), torch.is_grad_enabled()
        return self._stored

    def combine(self, couplings: Tensor) -> Tensor:
        return (couplings.unsqueeze(-2) @ self.dense()).squeeze(-2)

    def agree(self, receivers: Tensor) -> Tensor:
        return (self.dense() @ receivers.unsqueeze(-1)).squeeze(-1)


def _check_transforms(senders: Tensor, weight: Tensor, shapes: str, axes: int) -> None:
    """UsageError unless children and transforms are floating point and of matching sizes."""
    places = (2, 1) if axes == 4 else (1,)
    fits = senders.dim() == 3 and weight.dim() == axes
    sizes = (senders.shape[-1], *senders.shape[1:-1])[: len(places)] if fits else ()
    if not fits or tuple(weight.shape[place] for place in places) != sizes:
        raise UsageError(
            f"senders are {tuple(senders.shape)} and weight is {tuple(weight.shape)}; they must be (batch, senders,"
            f" d_in) and {shapes}."
        )
    if not (senders.is_floating_point() and weight.is_floating_point()):
        raise UsageError(
            f"senders are {senders.dtype} and weight is {weight.dtype}; both must be floating point: convert them, for"
            " example with .float()."
        )


class DenseVotes(_StoredVotes):
    """vote[b, r, s] = W[r, s]^T u[b, s]: a transform of its own for every pair.

    Args:
        senders, weight: u and W. If their types differ, votes have the wider one.
        method: "auto", "stored" or "streamed"; see the module.
        tile: number of senders that einsum streams at a time; None chooses from the sizes.

    Shapes: senders (batch, senders, d_in), weight (receivers, senders, d_in, d_out); one head.
    """

    shapes, axes, equation = "(receivers, senders, d_in, d_out)", 4, "bsd,rsde->brse"

    def __init__(self, senders: Tensor, weight: Tensor, *, method: str = "auto", tile: int | None = None) -> None:
        super().__init__()
        _check_transforms(senders, weight, self.shapes, self.axes)
        check_choice("method", method, METHODS)
        if tile is not None and tile < 1:
            raise UsageError(f"tile is {tile}; it must be at least 1, or None to choose it from the sizes.")
        if method == "streamed" and (reason := fallback_reason()) is not None:
            raise cannot_run_here("streamed", reason, "stored")
        self.senders, self.weight, self.method, self.tile = senders, weight, method, tile

    @property
    def dtype(self) -> torch.dtype:
        """The type of the votes."""
        return torch.promote_types(self.senders.dtype, self.weight.dtype)

    def _make(self) -> Tensor:
        senders, weight = bounded(self.senders).to(self.dtype), self.weight.to(self.dtype)
        return torch.einsum(self.equation, senders, weight).unsqueeze(1)

    @property
    def streams(self) -> bool:
        """Whether the verbs run without the tensor of votes."""
        if self.method != "auto":
            return self.method == "streamed"
        return self._stored is None and fallback_reason() is None and self.senders.dtype == self.weight.dtype

    def combine(self, couplings: Tensor) -> Tensor:
        couplings = self._checked(couplings, "couplings", "senders", self.senders.shape[1])
        if not self.streams:
            return super().combine(couplings)
        return kernels.combine(couplings.squeeze(1), bounded(self.senders), self.weight, tile=self.tile).unsqueeze(1)

    def agree(self, receivers: Tensor) -> Tensor:
        receivers = self._checked(receivers, "receivers", "pose", self.weight.shape[-1])
        if not self.streams:
            return super().agree(receivers)
        return kernels.agree(bounded(self.senders), self.weight, receivers.squeeze(1), tile=self.tile).unsqueeze(1)

    def _checked(self, x: Tensor, name: str, last: str, size: int) -> Tensor:
        """The argument of a verb in the type of the votes; UsageError for another shape."""
        batch, receivers = self.senders.shape[0], self.weight.shape[0]
        if x.shape != (batch, 1, receivers, size):
            raise UsageError(
                f"{name} are {tuple(x.shape)}; for these votes they must be (batch, 1, receivers, {last}) ="
                f" {(batch, 1, receivers, size)}."
            )
        return x.to(self.dtype)

    def select(self, samples: Tensor, receivers: Tensor) -> Tensor:
        equation = "nsd,nsde->nse" if self.axes == 4 else "nsd,nde->nse"
        return torch.einsum(equation, bounded(self.senders)[samples], self.weight[receivers]).unsqueeze(1)


class SharedVotes(DenseVotes):
    """vote[b, r, s] = W[r]^T u[b, s]: one transform a receiver, shared by all senders; see `DenseVotes`.

    Shapes: senders (batch, senders, d_in), weight (receivers, d_in, d_out); one head.
    """

    shapes, axes, equation = "(receivers, d_in, d_out)", 3, "bsd,rde->brse"


def transformed_votes(senders: Tensor, weight: Tensor, *, method: str = "auto") -> DenseVotes:
    """`DenseVotes`, or `SharedVotes` if the transforms have no axis of senders."""
    return (SharedVotes if weight.dim() == 3 else DenseVotes)(senders, weight, method=method)


class MatrixVotes(_StoredVotes):
    """vote[b, r, s] = U[b, s] W[r, s], products of matrices, read row by row.

    Shapes: poses (batch, senders, rows, side), weight (receivers, senders, side, columns); one head, and a pose of
        rows * columns.
    """

    def __init__(self, poses: Tensor, weight: Tensor) -> None:
        super().__init__()
        self.poses, self.weight = poses, weight

    @staticmethod
    def _product(poses: Tensor, weight: Tensor) -> Tensor:
        # As a sum over the inner index: one large product rounds differently for other batch sizes, and EM magnifies
        # that.
        product = poses[..., 0, None] * weight[..., 0, None, :]
        for k in range(1, poses.shape[-1]):
            product = product + poses[..., k, None] * weight[..., k, None, :]
        return product.flatten(-2)

    def _make(self) -> Tensor:
        return self._product(bounded(self.poses).unsqueeze(1), self.weight).unsqueeze(1)

    def select(self, samples: Tensor, receivers: Tensor) -> Tensor:
        return self._product(bounded(self.poses)[samples], self.weight[receivers]).unsqueeze(1)


class GivenVotes(_StoredVotes):
    """Votes that exist as a tensor, such as the output of a convolution.

    Shapes: votes (batch, heads, receivers, senders, pose).
    """

    def __init__(self, votes: Tensor) -> None:
        super().__init__()
        self.votes = votes

    def _make(self) -> Tensor:
        return self.votes

    def select(self, samples: Tensor, receivers: Tensor) -> Tensor:
        return self.votes[samples, :, receivers]


class SameVotes(Votes):
    """vote[b, h, r, s] = value[b, h, s]: every sender contributes the same to all.

    Shapes: values (batch, heads, senders, pose); the couplings give the number of receivers.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def combine(self, couplings: Tensor) -> Tensor:
        return couplings @ self.values

    def agree(self, receivers: Tensor) -> Tensor:
        return receivers @ self.values.transpose(-1, -2)

    def dense(self) -> Tensor:
        """(batch, heads, 1, senders, pose): the axis of receivers has one entry, because votes are the same for all."""
        return self.values.unsqueeze(2)

    def select(self, samples: Tensor, receivers: Tensor) -> Tensor:
        return self.values[samples]


class JoinedVotes(Votes):
    """Votes of several sets of senders for the same receivers, numbered one set after the other.

    Args:
        parts: the votes of each set.
        counts: senders of each set.
    """

    def __init__(self, parts: Sequence[Votes], counts: Sequence[int]) -> None:
        self.parts, self.counts = list(parts), list(counts)

    def combine(self, couplings: Tensor) -> Tensor:
        split = couplings.split(self.counts, -1)
        first, *others = (part.combine(own) for part, own in zip(self.parts, split, strict=True))
        return sum(others, start=first)

    def agree(self, receivers: Tensor) -> Tensor:
        return torch.cat([part.agree(receivers) for part in self.parts], -1)

    def dense(self) -> Tensor:
        return torch.cat([part.dense() for part in self.parts], 3)

    def select(self, samples: Tensor, receivers: Tensor) -> Tensor:
        return torch.cat([part.select(samples, receivers) for part in self.parts], 2)
