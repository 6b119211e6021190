"""Votes of the children in overlapping windows for the parents at the position of each window.

    vote[n, r, s] = U[n, s] W[r, s]       n counts windows of all images, s the children of a window, r types of parents

Poses are matrices here: a vector is one row, and a complex vector one row of real and imaginary parts. All windows
share the transforms, as in a convolution. With `compete` "positions" a child is divided among the parents
of all windows that read it, as in "Matrix capsules with EM routing" (ICLR 2018); with "window" every window divides its
children anew, as most public code does.
"""

import torch
from torch import Tensor

from mereo.core.coupling import Coupling
from mereo.core.kernels import votes as kernels
from mereo.core.kernels.gaussian_passes import fitted
from mereo.core.kernels.gaussians import Floor, fit_gaussians, log_density
from mereo.core.kernels.transforms import fallback_reason
from mereo.core.squash import bounded
from mereo.core.topology import Windows
from mereo.core.votes import METHODS, MatrixVotes
from mereo.errors import UsageError, check_choice

COMPETE = ("positions", "window")


class WindowVotes(MatrixVotes):
    """vote[n, r, s] = U[n, s] W[r, s], for children s of window n and parents r at its position.

    Args:
        poses: what each window reads, zero for children beyond the map.
        weight: transforms, the same for every window.
        windows: which children the windows read; None if every sample is one window.
        compete: "positions" or "window"; see the module.
        method: "stored" keeps the tensor of votes, "streamed" never makes it, "auto" streams if it can.

    Shapes: poses (batch * windows, senders, rows, inner), weight (receivers, senders, inner, columns); one head, and a
        pose of rows * columns.
    """

    def __init__(
        self,
        poses: Tensor,
        weight: Tensor,
        windows: Windows | None = None,
        *,
        compete: str = "positions",
        method: str = "auto",
    ) -> None:
        super().__init__(poses, weight)
        if poses.dim() != 4 or weight.dim() != 4 or poses.shape[1::2] != weight.shape[1:3]:
            raise UsageError(
                f"poses are {tuple(poses.shape)} and weight is {tuple(weight.shape)}; they must be (batch, senders,"
                " rows, inner) and (receivers, senders, inner, columns)."
            )
        check_choice("compete", compete, COMPETE)
        check_choice("method", method, METHODS)
        self.windows, self.compete, self.method = windows, compete, method

    @property
    def across(self) -> Windows | None:
        """The windows whose parents compete for a child; None if only parents of one window compete."""
        one = self.windows is None or self.windows.count == 1 or self.compete == "window"
        return None if one else self.windows

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(batch * windows, receivers, senders, pose)."""
        receivers, senders, _, columns = self.weight.shape
        return self.poses.shape[0], receivers, senders, self.poses.shape[2] * columns

    @property
    def streams(self) -> bool:
        """Whether the verbs run without the tensor of votes."""
        if self.method == "auto":
            return self._stored is None and fallback_reason() is None
        return self.method == "streamed"

    def couple(
        self, coupling: Coupling, scores: Tensor, *, offset: Tensor | None = None, weight: Tensor | None = None
    ) -> Tensor:
        """Couplings of these children, which compete according to `compete` and are shown over the whole map.

        Shapes: scores (batch * windows, 1, receivers, senders), offset and weight broadcastable to it -> the same.
        """
        tiles = None
        if coupling.observers and self.windows is not None:
            tiles = self.windows.of_types(self.sizes[2] // self.windows.offsets, self.sizes[1])
        return coupling(scores, offset=offset, weight=weight, tiles=tiles, across=self.across)

    def equal_scores(self) -> Tensor:
        """Zeros (batch * windows, 1, receivers, senders), with which routing starts."""
        windows, receivers, senders, _ = self.sizes
        return self.poses.new_zeros(1, 1, 1, 1).expand(windows, 1, receivers, senders)

    def _by_rows(self, x: Tensor) -> Tensor:
        """One entry for each row of each window: (windows, ...) -> (windows * rows, ...)."""
        rows = self.poses.shape[2]
        return x if rows == 1 else x.unsqueeze(1).expand(-1, rows, *x.shape[1:]).flatten(0, 1)

    def _children(self) -> Tensor:
        """The rows of the poses as vectors: (windows * rows, senders, inner)."""
        return bounded(self.poses).transpose(1, 2).flatten(0, 1)

    def combine(self, couplings: Tensor) -> Tensor:
        if not self.streams:
            return super().combine(couplings)
        rows = self.poses.shape[2]
        sums = kernels.combine(self._by_rows(couplings.squeeze(1)), self._children(), self.weight)
        return sums.unflatten(0, (-1, rows)).transpose(1, 2).flatten(2).unsqueeze(1)

    def agree(self, receivers: Tensor) -> Tensor:
        if not self.streams:
            return super().agree(receivers)
        rows = self.poses.shape[2]
        by_rows = receivers.squeeze(1).unflatten(-1, (rows, -1)).transpose(1, 2).flatten(0, 1)
        fits = kernels.agree(self._children(), self.weight, by_rows)
        return fits.unflatten(0, (-1, rows)).sum(1).unsqueeze(1)

    def select(self, samples: Tensor, receivers: Tensor) -> Tensor:
        """As `Votes.select`. With windows, samples and receivers are numbered over the whole maps, and a child that the
        parent's window does not read has a vote of 0."""
        if self.windows is None:
            return super().select(samples, receivers)
        count = self.windows.count
        types = self.sizes[2] // self.windows.offsets
        numbers = self.windows.of_types(types, self.sizes[1]).senders.to(samples.device)[receivers % count]
        votes = super().select(samples * count + receivers % count, receivers // count).squeeze(1)
        cells = types * self.windows.rows * self.windows.columns
        whole = votes.new_zeros(len(samples), cells + 1, votes.shape[-1])
        index = torch.where(numbers < 0, cells, numbers).unsqueeze(-1).expand_as(votes)
        return whole.scatter(1, index, votes)[:, None, :-1]

    def gaussians(
        self, couplings: Tensor, floor: Floor, *, with_fit: bool = True
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Mean and variance of the votes for each parent under `couplings`, and the log density of every vote.

        Shapes: couplings (batch * windows, receivers, senders) -> mean, variance (batch * windows, receivers, pose),
            fit (batch * windows, receivers, senders).
        """
        method = {"auto": "auto" if self._stored is None else "stored"}.get(self.method, self.method)
        if method == "stored":
            votes = self.dense().squeeze(1)
            moments = fit_gaussians(votes, couplings, floor)
            return moments.mean, moments.variance, log_density(votes, moments) if with_fit else None
        return fitted(bounded(self.poses), self.weight, couplings, floor, with_fit=with_fit, method=method)

    def sum(self) -> Tensor:
        """All votes for each parent, added: (batch * windows, 1, receivers, pose)."""
        children = bounded(self.poses).transpose(1, 2).flatten(2)
        matrices = self.weight.flatten(1, 2)
        return torch.einsum("nai,ric->nrac", children, matrices).flatten(2).unsqueeze(1)
