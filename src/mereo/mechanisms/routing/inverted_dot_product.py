"""Inverted dot-product attention routing: parents compete for a child by the fit of its votes to their poses.

Source: Tsai, Srivastava, Goh, Salakhutdinov 2020, arXiv:2002.04764, and the authors' code.
Cost: the first pass is one product of children and transforms, 2 S R d^1.5 FLOPs an image with poses of d numbers; each
further pass makes the votes twice, once to compare and once to sum, and stores none if it can stream.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Capsules, Coupling, bounded, depends, mechanism, settle
from mereo.core.modes import must_be_called, unconverted
from mereo.core.squash import accumulation_type
from mereo.core.window_votes import WindowVotes
from mereo.errors import UsageError, check_choice, check_positive, check_probability, check_steps
from mereo.mechanisms.routing.vote_routing import VoteRouting, vote_routing

POSES = ("matrix", "vector")


def square_side(dim: int) -> int:
    """Side of a square matrix of `dim` numbers; UsageError if `dim` is no square."""
    side = round(dim**0.5)
    if side * side != dim:
        raise UsageError(f"the pose has {dim} numbers, which are no square matrix; give 16, 36 or another square.")
    return side


def update_parents(
    votes: WindowVotes, parents: Tensor | None, coupling: Coupling, norm: nn.LayerNorm, dropout: float = 0.0
) -> Tensor:
    """One pass: the parents that the votes make of the parents before, or at first without any.

    r_rs = softmax_r(<p_r, v_rs> / sqrt(d)), or 1 / receivers at first;   p_r = LayerNorm(sum_s r_rs v_rs)

    Shapes: parents (batch * windows, receivers, pose) -> the same.
    """
    _, receivers, _, pose = votes.sizes
    if parents is None and not coupling.watched and votes.across is None:
        sums = votes.sum() / receivers
    else:
        scores = votes.equal_scores() if parents is None else votes.agree(parents.unsqueeze(1)) * pose**-0.5
        sums = votes.combine(votes.couple(coupling, scores))
    sums = F.dropout(bounded(sums.squeeze(1)), dropout, norm.training)
    if must_be_called(norm):
        return norm(sums)
    weight, bias = norm.weight.to(sums.dtype), norm.bias.to(sums.dtype)
    return F.layer_norm(sums, (pose,), weight, bias, norm.eps)


def _check_normalised(**sizes: int) -> None:
    """UsageError for poses of one number, which layer normalisation makes a constant."""
    for name, size in sizes.items():
        if size == 1:
            raise UsageError(f"{name} is 1, and layer normalisation makes one number a constant; give at least 2.")


@vote_routing("inverted_dot_product")
class InvertedDotProductVoteRouting(VoteRouting):
    """Inverted dot-product routing of the votes that a layer makes: see `InvertedDotProductRouting`.

    It is the paper's routing if `compete` is "window". These capsules have no activations: the activations of children
    are not used, and parents get 1.

    Args:
        receivers, senders, pose: as for every `VoteRouting`.
        steps: passes, at least 1.
        dropout: of the entries of parents, in training.

    Reads as: couplings[b, 0, r, s] is the share of its vote that child s gives to parent r.

    Reference: arXiv:2002.04764.
    """

    def __init__(self, receivers: int, senders: int, pose: int, *, steps: int = 2, dropout: float = 0.0) -> None:
        super().__init__(receivers, senders, pose)
        check_steps(1, steps=steps)
        check_probability(dropout=dropout)
        self.steps, self.dropout = steps, dropout
        _check_normalised(pose=pose)
        self.norm = nn.LayerNorm(pose)
        self.coupling = Coupling("receivers")

    def update(self, votes: WindowVotes, parents: Tensor | None) -> Tensor:
        """One pass: see `update_parents`."""
        return update_parents(votes, parents, self.coupling, self.norm, self.dropout)

    def forward(self, votes: WindowVotes, activation: Tensor | None = None) -> Capsules:
        start: Tensor | None = None
        parents = settle(lambda parents: self.update(votes, parents), start, steps=self.steps)
        assert parents is not None
        return Capsules(parents, parents.new_ones(parents.shape[:2]))


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return InvertedDotProductRouting(12, 5, 4), (torch.randn(3, 12, 4),)


@mechanism(
    "inverted_dot_product",
    family="routing",
    over="receivers",
    steps=depends("steps", 2),
    values="per pair",
    update="layer norm",
    source="arXiv:2002.04764",
    promises=("normalised", "masks", "any sender order", "any receiver order"),
    sender_axes={"0": 1, "weight": 1},
    receiver_axes={"weight": 0, "output": 1},
    example=_example,
)
class InvertedDotProductRouting(nn.Module):
    """Divide each child among the parents by the dot products of its votes with the parents of the pass before.

    v_rs = M_s W_rs (matrices) or W_rs^T u_s (vectors);  r_rs = 1 / receivers;  p_r = LayerNorm(sum_s r_rs v_rs);  then
    steps - 1 times:  r_rs = softmax_r(<p_r, v_rs> / sqrt(d)),   p_r = LayerNorm(sum_s r_rs v_rs)

    Args:
        senders, receivers: how many children and parents.
        sender_dim: numbers in a pose; a matrix is square.
        receiver_dim: numbers in the pose of a parent, for vectors only; None for the number of a child.
        steps: passes, at least 1; the first one is uniform.
        pose: "matrix" or "vector".
        dropout: of the entries of parents, in training.

    Shapes: children (batch, senders, sender_dim), matrices row by row; mask (batch, senders) -> (batch, receivers,
        receiver_dim). A call with several children, one for each pass, routes the children of the previous pass in each
        pass after the first, as layers do that are updated together: see `forward`.

    Reads as: couplings[b, 0, r, s] is the share of its vote that child s gives to parent r.

    Deviates: none; the division by a sum of 1 after the softmax in the authors' code is left out.

    Reference: arXiv:2002.04764.
    """

    def __init__(
        self,
        senders: int,
        receivers: int,
        sender_dim: int,
        receiver_dim: int | None = None,
        *,
        steps: int = 2,
        pose: str = "matrix",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(senders=senders, receivers=receivers, sender_dim=sender_dim)
        check_steps(1, steps=steps)
        check_choice("pose", pose, POSES)
        check_probability(dropout=dropout)
        receiver_dim = sender_dim if receiver_dim is None else receiver_dim
        if pose == "matrix" and receiver_dim != sender_dim:
            raise UsageError(f"receiver_dim is {receiver_dim} and sender_dim {sender_dim}; matrices keep their size.")
        check_positive(receiver_dim=receiver_dim)
        shape = (square_side(sender_dim),) * 2 if pose == "matrix" else (sender_dim, receiver_dim)
        self.rows = shape[0] if pose == "matrix" else 1
        self.steps, self.dropout = steps, dropout
        self.weight = nn.Parameter(torch.randn(receivers, senders, *shape) * (receivers / (shape[0] * senders)) ** 0.5)
        _check_normalised(receiver_dim=receiver_dim)
        self.norm = nn.LayerNorm(receiver_dim)
        self.coupling = Coupling("receivers")

    def votes_of(self, children: Tensor, mask: Tensor | None = None) -> WindowVotes:
        """The votes of each child for each parent."""
        _, senders, inner, _ = self.weight.shape
        if children.shape[1:] != (senders, self.rows * inner):
            raise UsageError(
                f"children are {tuple(children.shape)}; they must be (batch, {senders}, {self.rows * inner})."
            )
        if mask is not None:
            children = children.masked_fill(~mask.unsqueeze(-1), 0)
        wide = accumulation_type(children)
        return WindowVotes(bounded(children.to(wide)).unflatten(-1, (self.rows, inner)), self.weight.to(wide))

    def update(self, votes: WindowVotes, parents: Tensor | None) -> Tensor:
        """One pass: see `update_parents`."""
        return update_parents(votes, parents, self.coupling, self.norm, self.dropout)

    def over_passes(self, children: Sequence[Tensor]) -> Tensor:
        """The parents after all passes: passes 1 and 2 route children[0], pass t children[t - 2]."""
        votes = self.votes_of(children[0])
        with unconverted(children[0]):
            parents = self.update(votes, None)
            for number in range(self.steps - 1):
                votes = votes if number == 0 else self.votes_of(children[number])
                parents = self.update(votes, parents)
        return parents.to(children[0].dtype)

    def forward(self, children: Tensor, mask: Tensor | None = None) -> Tensor:
        votes, start = self.votes_of(children, mask), None
        with unconverted(children):
            parents = settle(lambda parents: self.update(votes, parents), start, steps=self.steps)
        return parents.to(children.dtype)  # type: ignore[union-attr]

    def extra_repr(self) -> str:
        receivers, senders, inner, columns = self.weight.shape
        return f"{senders} x {self.rows * inner} -> {receivers} x {self.rows * columns}, steps={self.steps}"
