"""Orthogonal attention routing: one pass, children with negligible shares left out, and transforms that keep angles.

Source: arXiv:2403.13351.
Cost: one pass. Simplified 4 I J D FLOPs for its scores and 2 I J D for the sums of I votes for J parents; full 4 I J D,
and the products of reflections once for all positions and images.
"""

import torch
from torch import Tensor, nn

from mereo.core import Coupling, GivenVotes, bounded, mechanism
from mereo.core.householder import SMALLEST, HouseholderMatrix, reflect
from mereo.core.squash import accumulation_type
from mereo.core.topology import Tiles
from mereo.errors import UsageError, check_choice, check_positive

MODES = ("simplified", "full")
NORMALISERS = ("entmax15", "sparsemax", "softmax")


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return OrthAttention(6, 4, 5), (torch.randn(3, 4, 6, 5),)


@mechanism(
    "orth_attention",
    family="routing",
    over="senders",
    values="per pair",
    update="orthogonal transform",
    source="arXiv:2403.13351",
    promises=("normalised", "masks", "any sender order", "any receiver order"),
    sender_axes={"0": 2, "keys": 2},
    receiver_axes={"0": 1, "keys": 0, "turn": 0, "output": 1},
    example=_example,
)
class OrthAttention(nn.Module):
    """Each parent attends to the votes for it, most of which get a share of exactly zero.

    full:        c_j = entmax_i( <W_Q y_j, W_K u_ji> / sqrt(D) ),      s_j = W_V sum_i c_ji u_ji,   y_j = mean_i u_ji
    simplified:  c_j = entmax_i( sum_d (H(k_jd) u_jd)_i / sqrt(D) ),   s_j = g * H(b_j) sum_i c_ji u_ji

    W_Q, W_K and W_V are products of D reflections; H(k) = I - 2 k k^T / |k|^2 acts on the children in the scores and on
    the numbers of a pose in the sum.

    Args:
        senders, receivers: how many children and parents. The full form takes any number of both.
        dim: numbers in a vote and in a pose.
        mode: "simplified", in which weights take the place of queries, or "full".
        normaliser: "entmax15", "sparsemax" or "softmax".

    Shapes: votes (batch, receivers, senders, dim), mask (batch, senders) -> (batch, receivers, dim). Where the votes of
        every position of a map are a sample of their own, `tiles` places their couplings.

    Reads as: couplings[b, 0, r, s] is the share of parent r that comes from child s.

    Deviates: the paper does not state what the queries of the full form are; a mean of the votes is ours. The authors'
        later code has a softmax with a temperature in place of entmax, one reflection in place of a product, and
        mixes the axes of the simplified form; this follows the text.

    Reference: arXiv:2403.13351.
    """

    def __init__(
        self, senders: int, receivers: int, dim: int, mode: str = "simplified", *, normaliser: str = "entmax15"
    ) -> None:
        super().__init__()
        check_positive(senders=senders, receivers=receivers, dim=dim)
        check_choice("mode", mode, MODES)
        check_choice("normaliser", normaliser, NORMALISERS)
        self.sizes, self.mode = (senders, receivers, dim), mode
        if mode == "full":
            self.turns = HouseholderMatrix(dim, copies=3)
        else:
            self.keys = nn.Parameter(torch.empty(receivers, dim, senders))
            self.turn = nn.Parameter(torch.empty(receivers, dim))
            self.scale = nn.Parameter(torch.ones(dim))
            for vectors in (self.keys, self.turn):
                nn.init.xavier_uniform_(vectors, gain=2**0.5)
        self.coupling = Coupling("senders", normaliser)

    def _scores(self, votes: Tensor, mask: Tensor | None, matrices: Tensor | None) -> Tensor:
        """(batch, receivers, senders), of votes that are zero where the mask is False."""
        root = self.sizes[2] ** -0.5
        if matrices is not None:
            if mask is None:
                mean = votes.mean(2)
            else:
                mean = votes.sum(2) / mask.sum(1).clamp(min=1).to(votes.dtype)[:, None, None]
            queries = mean @ (matrices[0].transpose(0, 1) @ matrices[1])
            return torch.einsum("brd,brsd->brs", queries * root, votes)
        keys = self.keys.to(votes.dtype)
        along = torch.einsum("rds,brsd->brd", keys, votes)
        square = (
            keys.square().sum(2) if mask is None else torch.einsum("rds,bs->brd", keys.square(), mask.to(keys.dtype))
        )
        along = along * (2 / square.clamp(min=SMALLEST))
        return (votes.sum(3) - torch.einsum("rds,brd->brs", keys, along)) * root

    def _turned(self, x: Tensor, matrices: Tensor | None) -> Tensor:
        """The transform of sums and, as it is linear, of votes: (batch, receivers, ..., dim) -> the same."""
        if matrices is not None:
            return x @ matrices[2].transpose(0, 1)
        turn = self.turn.to(x.dtype)
        return reflect(x, turn if x.dim() == 3 else turn.unsqueeze(1)) * self.scale.to(x.dtype)

    def _prepared(self, votes: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Votes as they are summed, and the matrices of the full form."""
        senders, receivers, dim = self.sizes
        if self.mode == "simplified":
            receivers, dim, senders = self.keys.shape
        fits = votes.dim() == 4 and votes.shape[3] == dim
        if not fits or (self.mode == "simplified" and votes.shape[1:3] != (receivers, senders)):
            raise UsageError(f"votes are {tuple(votes.shape)}; they must be (batch, {receivers}, {senders}, {dim}).")
        wide = bounded(votes.to(accumulation_type(votes)))
        if mask is not None:
            wide = wide.masked_fill(~mask[:, None, :, None], 0)
        return wide, self.turns().to(wide.dtype) if self.mode == "full" else None

    def votes(self, votes: Tensor, mask: Tensor | None = None) -> GivenVotes:
        """The votes as they enter the parents, transformed."""
        wide, matrices = self._prepared(votes, mask)
        return GivenVotes(self._turned(wide, matrices).unsqueeze(1))

    def forward(self, votes: Tensor, mask: Tensor | None = None, *, tiles: Tiles | None = None) -> Tensor:
        wide, matrices = self._prepared(votes, mask)
        scores = self._scores(wide, mask, matrices).unsqueeze(1)
        couplings = self.coupling(scores, None if mask is None else mask[:, None, None], tiles=tiles)
        sums = GivenVotes(wide.unsqueeze(1)).combine(couplings).squeeze(1)
        return bounded(self._turned(sums, matrices).to(votes.dtype))

    def extra_repr(self) -> str:
        senders, receivers, dim = self.sizes
        return f"{senders} -> {receivers} x {dim}, mode={self.mode!r}"
