"""Cross-agreement routing: fine capsules decide how much the coarse capsule above them counts.

Source: Hu, Han, Sun, Ren 2025, arXiv:2508.16922. The authors have not published code, as far as we know.
Cost: one pass. The agreement uses <W^T u, V> = <u, W V>, so votes of the fine capsules are never made; with shared
weights one product W V per coarse capsule serves all the fine capsules under it. The streamed form makes no votes at
all (`mereo.core.kernels.cross_agreement`): it holds capsules, couplings and one tile in memory.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mereo.core import Coupling, DenseVotes, Grid, bounded, depends, mechanism, squash
from mereo.core.coupling import Over
from mereo.core.kernels.cross_agreement import best_agreement
from mereo.core.kernels.methods import execute
from mereo.core.kernels.transforms import fallback_reason
from mereo.errors import UsageError, check_positive

LARGE_VOTES = 1 << 24
"""Entries of the votes above which transforms of their own are streamed too, for memory; below, that is slower."""


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    routing = CrossAgreementRouting(16, 4, 5, 6, 6, 8, dropout=0.1)
    return routing, (torch.randn(3, 16, 6), torch.randn(3, 4, 6))


@mechanism(
    "cross_agreement",
    family="routing",
    over=depends("over", "senders"),
    steps=1,
    values="per pair",
    update="squash",
    source="arXiv:2508.16922",
    promises=("normalised", "any receiver order"),
    receiver_axes={"weight": 0, "output": 1},
    example=_example,
)
class CrossAgreementRouting(nn.Module):
    """Fuse fine and coarse capsules into parents: a coarse vote counts by its fit to the best fine vote below it.

    V2_jk = W2_jk^T u2_k,   V1_jkm = W1_j(km)^T u1_km   (W2_jk^T u1_km with shared weights)
    A_jk  = max_m <V1_jkm, V2_jk> / sqrt(D),   C = softmax(A),   v_j = squash(sum_k C_jk V2_jk)

    Args:
        fine, coarse, receivers: how many capsules of each; `fine` must be a multiple of `coarse`.
        fine_dim, coarse_dim, receiver_dim: their pose sizes; sharing needs fine_dim = coarse_dim.
        share_weights: the fine capsules vote with the matrix of the coarse capsule above them.
        over: the axis of the softmax, which the paper does not state; `papers/mspcaps/claims.md` has measurements.
        dropout: of the couplings, in training.

    Attributes:
        fine_grid, fine_cells: positions of the fine capsules on the image, and the cell of each, int64 (fine,); set by
            the network, None without positions.

    Shapes:
        fine (batch, fine, fine_dim): the members of coarse capsule k are fine capsules k s to (k + 1) s - 1, where
        s = fine / coarse; coarse (batch, coarse, coarse_dim) -> (batch, receivers, receiver_dim).

    A call takes `method`: "plain" keeps the coarse votes, "streamed" makes none; "auto" chooses (see METHODS).

    Reads as: couplings[b, 0, j, k] is how much of coarse capsule k's vote goes into parent j.

    Deviates: the paper states Kaiming normal for the routing weights; the fan-in is ours: coarse * coarse_dim, the
    number of
        terms that a parent sums over. With only coarse_dim, capsules start long for every class, and the first epochs
        of training shorten them again. Over senders the deviation is coarse / receivers times as large:
        couplings are 1 / coarse there at first, not 1 / receivers, and so parents start as long as over receivers.

    Reference: arXiv:2508.16922
    """

    fine_grid: Grid | None = None
    fine_cells: Tensor | None = None

    def __init__(
        self,
        fine: int,
        coarse: int,
        receivers: int,
        fine_dim: int,
        coarse_dim: int,
        receiver_dim: int,
        *,
        share_weights: bool = True,
        over: Over = "senders",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(fine=fine, coarse=coarse, receivers=receivers)
        check_positive(fine_dim=fine_dim, coarse_dim=coarse_dim, receiver_dim=receiver_dim)
        if fine % coarse:
            raise UsageError(
                f"fine is {fine} and coarse {coarse}; fine must be a multiple of coarse (fine = s coarse)."
            )
        if share_weights and fine_dim != coarse_dim:
            raise UsageError(
                f"share_weights needs fine and coarse capsules of one size; they are {fine_dim} and {coarse_dim}."
                " Give equal sizes or share_weights=False."
            )
        self.members = fine // coarse
        gain = 1.0 if over == "receivers" else coarse / receivers
        self.weight = nn.Parameter(torch.empty(receivers, coarse, coarse_dim, receiver_dim))
        nn.init.normal_(self.weight, std=gain * (2 / (coarse * coarse_dim)) ** 0.5)
        self.fine_weight: nn.Parameter | None = None
        if not share_weights:
            self.fine_weight = nn.Parameter(torch.empty(receivers, fine, fine_dim, receiver_dim))
            nn.init.normal_(self.fine_weight, std=gain * (2 / (coarse * fine_dim)) ** 0.5)
        self.coupling = Coupling(over, dropout=dropout)

    def votes(self, fine: Tensor, coarse: Tensor) -> DenseVotes:
        """The votes of each coarse capsule for each parent; the fine capsules decide their weight."""
        return DenseVotes(coarse, self.weight)

    def _members(self, fine: Tensor) -> Tensor:
        """(batch, coarse, members, fine_dim)."""
        return bounded(fine).unflatten(1, (-1, self.members))

    def _own_weight(self) -> Tensor | None:
        """Transforms of the fine capsules (receivers, coarse, members, fine_dim, pose); None if they are shared."""
        return None if self.fine_weight is None else self.fine_weight.unflatten(1, (-1, self.members))

    def agreement(self, fine: Tensor, votes: Tensor) -> Tensor:
        """A_jk: the best inner product of a member's vote with the coarse vote.

        Shapes: fine (batch, fine, fine_dim), votes (batch, receivers, coarse, receiver_dim)
            -> (batch, receivers, coarse).
        """
        members, own = self._members(fine), self._own_weight()
        if own is None:
            back = torch.einsum("jkde,bjke->bjkd", self.weight, votes)
            scores = torch.einsum("bkmd,bjkd->bjkm", members, back)
        else:
            scores = torch.einsum("bkmd,bjkmd->bjkm", members, torch.einsum("jkmde,bjke->bjkmd", own, votes))
        return scores.amax(-1) * votes.shape[-1] ** -0.5

    def best_members(self, fine: Tensor, coarse: Tensor, samples: Tensor, receivers: Tensor) -> tuple[Tensor, Tensor]:
        """Which fine capsule agreed best with each coarse capsule's vote, and its score: for one parent a sample.

        Only that fine capsule determines the score, and so the coupling, of the coarse one.

        Shapes: fine and coarse as in the call, samples and receivers int64 (pairs,) -> numbers of fine capsules int64
            (pairs, coarse), scores (pairs, coarse).
        """
        with torch.no_grad():
            votes = self.votes(fine, coarse).select(samples, receivers).squeeze(1)
            members, own = self._members(fine)[samples], self._own_weight()
            if own is None:
                scores = torch.einsum("nkmd,nkde,nke->nkm", members, self.weight[receivers], votes)
            else:
                scores = torch.einsum("nkmd,nkmde,nke->nkm", members, own[receivers], votes)
            best, place = scores.max(-1)
        first = torch.arange(members.shape[1], device=fine.device) * self.members
        return first + place, best * votes.shape[-1] ** -0.5

    def forward(self, fine: Tensor, coarse: Tensor, *, method: str = "auto") -> Tensor:
        receivers, senders, _, pose = self.weight.shape
        large = coarse.shape[0] * receivers * senders * pose > LARGE_VOTES
        if method == "auto" and self.fine_weight is not None and not large:
            method = "plain"
        return squash(execute(METHODS, _Call(self, fine, coarse), method, always="plain"))

    def extra_repr(self) -> str:
        receivers, coarse, coarse_dim, receiver_dim = self.weight.shape
        shared = self.fine_weight is None
        return f"{coarse} x {coarse_dim} -> {receivers} x {receiver_dim}, members={self.members}, shared={shared}"


class _Call(NamedTuple):
    routing: CrossAgreementRouting
    fine: Tensor
    coarse: Tensor


def _plain(call: _Call) -> Tensor:
    routing, fine, coarse = call
    votes = DenseVotes(coarse, routing.weight, method="stored")
    scores = routing.agreement(fine, votes.dense().squeeze(1)).unsqueeze(1)
    return votes.combine(routing.coupling(scores)).squeeze(1)


def _streamed(call: _Call) -> Tensor:
    routing, fine, coarse = call
    votes = DenseVotes(coarse, routing.weight, method="streamed")
    scores = best_agreement(routing._members(fine), bounded(coarse), routing.weight, routing._own_weight())
    return votes.combine(routing.coupling(scores.unsqueeze(1) * routing.weight.shape[-1] ** -0.5)).squeeze(1)


METHODS: dict[str, tuple[Callable[[_Call], Tensor], Callable[[_Call], str | None]]] = {
    "streamed": (_streamed, lambda call: fallback_reason()),
    "plain": (_plain, lambda call: None),
}
"""Name -> (function, why it cannot run: None if it can), the preferred first. Both couple through the Coupling."""
