"""Attention routing: each type of children makes votes by a convolution, and each parent attends to the types.

Source: Choi, Seo, Im, Kang 2019, arXiv:1907.01750, and the authors' code,
https://github.com/chjw1475/Attention-Routing-Capsules
Cost: for P positions, I types of children of d numbers and J types of parents of D: votes 2 k^2 I J d D P FLOPs an
image, scores 2 I^2 J D P; one pass, with I J D numbers a position kept.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Coupling, bounded, mechanism
from mereo.core.shapes import same_padding
from mereo.core.squash import accumulation_type
from mereo.core.topology import Tiles, Windows
from mereo.core.window_votes import WindowVotes
from mereo.errors import UsageError, check_positive, check_probability


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return AttentionRouting(4, 3, 2, 5), (torch.randn(3, 4, 2, 4, 3),)


def _glorot(weight: Tensor, fan_in: int, fan_out: int) -> None:
    bound = (6 / (fan_in + fan_out)) ** 0.5
    nn.init.uniform_(weight, -bound, bound)


@mechanism(
    "attention_routing",
    family="routing",
    over="senders",
    steps=1,
    values="per pair",
    update="linear layer",
    source="arXiv:1907.01750",
    promises=("normalised", "any receiver order"),
    receiver_axes={"weight": 1, "bias": 1, "score": 0, "transform": 0, "shift": 0, "output": 1},
    example=_example,
)
class AttentionRouting(nn.Module):
    """Combine the votes of all types of children at a position by a learned attention of each parent.

    u_ij = conv(x_i; W_ij) + b_ij        the vote of child type i for parent type j, at every position
    a_ij = sum_k <K_jik, u_kj>           scores from the votes of all types
    c_ij = softmax_i(a_ij),   s_j = sum_i c_ij u_ij,   y_j = A_j s_j + B_j

    Args:
        senders, receivers: types of children and of parents.
        sender_dim, receiver_dim: their pose sizes.
        kernel: of the convolutions, a number or (down, across).
        stride: of the convolutions.
        same: pad as TensorFlow's SAME does, for ceil(side / stride) positions; else there is no padding.
        dropout: probability with which a number of a child is dropped in training.

    Shapes: maps (batch, senders, sender_dim, rows, columns) -> (batch, receivers, receiver_dim, rows', columns').

    Reads as: couplings[b, 0, r, s] is the share of the vote of the type of child s in parent r, for children that the
        window of the parent reads; both are numbered by type, row and column. At one position the shares of all types
        sum to one, and children of one type in a window have the same share.

    Deviates: none in what is computed; the authors loop over types. While couplings are watched, every child of a
        window votes for itself, and the bias of a type is spread evenly over its window.

    Reference: arXiv:1907.01750, sections 3.2 and 3.3.
    """

    has_coupling_map = False
    """The shares of the types at a place sum to one, so that a map of their mean would be the same everywhere."""

    def __init__(
        self,
        senders: int,
        receivers: int,
        sender_dim: int,
        receiver_dim: int,
        *,
        kernel: int | tuple[int, int] = 3,
        stride: int = 1,
        same: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(senders=senders, receivers=receivers, sender_dim=sender_dim, receiver_dim=receiver_dim)
        down, across = kernel if isinstance(kernel, tuple | list) else (kernel, kernel)
        check_positive(kernel=min(down, across), stride=stride)
        check_probability(dropout=dropout)
        self.kernel, self.stride, self.same, self.dropout = (down, across), stride, same, dropout
        self.weight = nn.Parameter(torch.empty(senders, receivers, receiver_dim, sender_dim, down, across))
        self.bias = nn.Parameter(torch.zeros(senders, receivers, receiver_dim))
        self.score = nn.Parameter(torch.empty(receivers, senders, senders, receiver_dim))
        self.transform = nn.Parameter(torch.empty(receivers, receiver_dim, receiver_dim))
        self.shift = nn.Parameter(torch.zeros(receivers, receiver_dim))
        self.coupling = Coupling("senders")
        cells = down * across
        _glorot(self.weight, cells * sender_dim, cells * senders * receivers * receiver_dim)
        _glorot(self.score, senders * receiver_dim, senders)
        _glorot(self.transform, receiver_dim, receiver_dim)

    def windows(self, rows: int, columns: int) -> Windows:
        """The window of each position on a map of this size."""
        borders = [(0, 0), (0, 0)]
        if self.same:
            sides = zip((rows, columns), self.kernel, strict=True)
            borders = [same_padding(side, kernel, self.stride) for side, kernel in sides]
        (top, bottom), (left, right) = borders
        extra, strides = (bottom - top, right - left), (self.stride, self.stride)
        return Windows(rows, columns, self.kernel, strides, (top, left), extra)

    def votes_of(self, maps: Tensor) -> Tensor:
        """The votes of each type of children: (batch, senders, receivers, receiver_dim, rows', columns')."""
        senders, receivers, dim, sender_dim = self.weight.shape[:4]
        if maps.dim() != 5 or maps.shape[1:3] != (senders, sender_dim):
            raise UsageError(
                f"maps are {tuple(maps.shape)}; they must be (batch, {senders}, {sender_dim}, rows, columns)."
            )
        windows = self.windows(maps.shape[3], maps.shape[4])
        flat = bounded(maps).flatten(1, 2)
        if windows.padded:
            (top, left), (below, right) = windows.padding, windows.extra
            flat = F.pad(flat, (left, left + right, top, top + below))
        votes = F.conv2d(flat, self.weight.flatten(0, 2), self.bias.flatten(), self.stride, groups=senders)
        return votes.unflatten(1, (senders, receivers, dim))

    def votes(self, maps: Tensor) -> WindowVotes:
        """The votes of every child in every window, after A was applied; the bias of a type is spread over them.

        Shapes: poses (batch * windows, children of a window, 1, sender_dim + 1), the last entry for the bias.
        """
        return self._votes_through(maps, self.transform)

    def _votes_through(self, maps: Tensor, transform: Tensor | None = None) -> WindowVotes:
        """`votes`, behind A or another linear map for each parent; None for none."""
        wide = accumulation_type(maps)
        windows = self.windows(maps.shape[3], maps.shape[4])
        children = windows.gather(bounded(maps.to(wide)))
        children = torch.cat((children, children.new_full((*children.shape[:2], 1), 1 / windows.offsets)), 2)
        bias = self.bias[..., None, None, None].expand(-1, -1, -1, -1, *self.kernel)
        weight = torch.cat((self.weight, bias), 3).to(wide).permute(1, 4, 5, 0, 3, 2).flatten(1, 3)
        if transform is not None:
            weight = torch.einsum("jsxd,jed->jsxe", weight, transform.to(wide))
        return WindowVotes(children.unsqueeze(2), weight, windows, compete="window")

    def scores_of(self, votes: Tensor) -> Tensor:
        """Scores at every position: votes (batch, senders, receivers, receiver_dim, positions) -> (batch, positions,
        receivers, senders)."""
        return torch.einsum("jikd,bkjdp->bpji", self.score.to(votes.dtype), votes)

    def attention(self, maps: Tensor) -> Tensor:
        """The share of every type at every position: (batch, senders, receivers, rows', columns')."""
        votes = self.votes_of(maps)
        scores = self.scores_of(bounded(votes.to(accumulation_type(maps))).flatten(4))
        shares = self.coupling.normalise(scores).permute(0, 3, 2, 1)
        return shares.unflatten(3, votes.shape[4:]).to(maps.dtype)

    def forward(self, maps: Tensor) -> Tensor:
        maps = F.dropout(maps, self.dropout, self.training)
        votes, wide = self.votes_of(maps), accumulation_type(maps)
        sides = votes.shape[4:]
        vote = bounded(votes.to(wide)).flatten(4)
        scores = self.scores_of(vote)
        if self.coupling.watched:
            combined = self._by_children(maps, scores)
        else:
            shares = self.coupling(scores.flatten(0, 1).unsqueeze(1)).squeeze(1).unflatten(0, (-1, vote.shape[4]))
            combined = (vote * shares.permute(0, 3, 2, 1).unsqueeze(3)).sum(1)
        parents = torch.einsum("jed,bjdp->bjep", self.transform.to(wide), combined)
        parents = parents + self.shift.to(wide).unsqueeze(-1)
        return parents.unflatten(3, sides).to(maps.dtype)

    def _by_children(self, maps: Tensor, scores: Tensor) -> Tensor:
        """Votes weighted by a coupling for each child of a window: one tile for each position and offset.

        Shapes: -> (batch, receivers, receiver_dim, positions).
        """
        votes = self._votes_through(maps)
        windows, (receivers, senders) = votes.windows, scores.shape[2:]
        assert windows is not None
        offsets, positions = windows.offsets, windows.count
        cells = windows.cells().flatten().unsqueeze(1)
        children = torch.arange(senders) * (windows.rows * windows.columns) + cells
        parents = torch.arange(receivers) * positions + torch.arange(positions).repeat_interleave(offsets).unsqueeze(1)
        tiles = Tiles(
            parents, torch.where(cells < 0, cells, children),
            receivers * positions, senders * windows.rows * windows.columns,
        )  # fmt: skip
        repeated = scores.flatten(0, 1).unsqueeze(1).expand(-1, offsets, -1, -1).flatten(0, 1).unsqueeze(1)
        couplings = self.coupling(repeated, tiles=tiles).squeeze(1).unflatten(0, (-1, offsets))
        combined = votes.combine(couplings.transpose(1, 2).flatten(2).unsqueeze(1))
        return combined.squeeze(1).unflatten(0, (-1, positions)).permute(0, 2, 3, 1)

    @staticmethod
    def in_a_row(maps: Tensor) -> Tensor:
        """Capsules of a map one after the other, by type, row and column, as couplings number them.

        Shapes: (batch, types, dim, rows, columns) -> (batch, types * rows * columns, dim).
        """
        return maps.movedim(2, -1).flatten(1, 3)

    def extra_repr(self) -> str:
        senders, receivers, dim, sender_dim = self.weight.shape[:4]
        return (
            f"{senders} x {sender_dim} -> {receivers} x {dim}, kernel={self.kernel}, stride={self.stride},"
            f" same={self.same}, dropout={self.dropout}"
        )
