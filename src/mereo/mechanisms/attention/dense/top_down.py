"""Top-down attention: parents predict their children, and each child moves to the predictions that it fits.

Source: Kiefer, Millidge, Tschantz, Buckley 2022, arXiv:2209.02567, equations 4 to 6.
Cost: predictions 2 R S d D FLOPs an image once (R children, S parents), then 4 R S d an iteration.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from mereo.core import Coupling, DenseVotes, depends, mechanism, settle
from mereo.core.votes import Votes
from mereo.errors import UsageError, check_positive


class _State(NamedTuple):
    """Children (batch, children, child_dim), and the scores and couplings that made them, None at first."""

    poses: Tensor
    scores: Tensor | None = None
    couplings: Tensor | None = None


def _explain(
    votes: Votes, children: Tensor, coupling: Coupling, steps: int, beta: float, accumulate: bool, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The children after `steps` iterations, and the last couplings, (batch, 1, children, parents)."""
    rows = None if mask is None else mask[:, None, None, :]
    present = None if mask is None else mask.any(-1)[:, None, None]

    def step(state: _State) -> _State:
        scores = beta * votes.agree(state.poses.unsqueeze(1))
        if accumulate and state.scores is not None:
            scores = state.scores + scores
        couplings = coupling(scores, rows)
        poses = votes.combine(couplings).squeeze(1)
        return _State(poses if present is None else torch.where(present, poses, children), scores, couplings)

    last = settle(step, _State(children), steps=steps)
    assert last.couplings is not None
    return last.poses, last.couplings


def top_down_attention(
    children: Tensor,
    parents: Tensor,
    transforms: Tensor,
    iterations: int = 1,
    *,
    beta: float | None = None,
    accumulate: bool = False,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Explain children by parents, iterating equation 6.

    U_ij = T_ij v_j,    w_i = softmax_j(beta <V_i, U_ij>),    V_i <- sum_j w_ij U_ij

    It is retrieval from a modern Hopfield network whose memories are the predictions for one child, so that no
    iteration raises E(V) = |V|^2 / 2 - 1/beta log sum_j exp(beta <V, U_ij>).

    Args:
        children: V, where the iteration starts.
        parents: v.
        transforms: T.
        iterations: at least 1.
        beta: multiplies the scores, above 0; 1 / sqrt(d) when None. The paper's equation has 1.
        accumulate: add the scores up over the iterations, as routing by agreement does.
        mask: bool, True = the parent takes part. Without any parent, children keep their values.

    Shapes: children (..., m, d), parents (..., n, e), transforms (m, n, d, e), mask (..., n)
        -> children (..., m, d), couplings (..., m, n).

    Reference: arXiv:2209.02567, eq. 6; accumulating is suggested in its section 3.2.
    """
    m, d = children.shape[-2:]
    n, e = parents.shape[-2:]
    if transforms.shape != (m, n, d, e):
        raise UsageError(
            f"transforms has shape {tuple(transforms.shape)}; for children {tuple(children.shape)} and parents"
            f" {tuple(parents.shape)} it must be {(m, n, d, e)}."
        )
    if children.shape[:-2] != parents.shape[:-2]:
        raise UsageError(
            f"children are {tuple(children.shape)} and parents {tuple(parents.shape)}; all axes before the last two"
            " must agree."
        )
    _check(iterations, beta)
    batch = children.shape[:-2]
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (*batch, n)):
        raise UsageError(f"mask is {mask.dtype} of shape {tuple(mask.shape)}; it must be bool of {(*batch, n)}.")
    votes = DenseVotes(parents.reshape(-1, n, e), transforms.transpose(-1, -2), method="stored")
    rows = None if mask is None else mask.reshape(-1, n)
    scale = d**-0.5 if beta is None else beta
    poses, couplings = _explain(
        votes, children.reshape(-1, m, d), Coupling("senders"), iterations, scale, accumulate, rows
    )
    return poses.reshape(children.shape), couplings.reshape(*batch, m, n)


def _check(iterations: int, beta: float | None) -> None:
    if not isinstance(iterations, int) or iterations < 1:
        raise UsageError(f"iterations is {iterations!r}; it must be a whole number of at least 1.")
    if beta is not None:
        check_positive(beta=beta)


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return TopDownAttention(7, 4, 6, 8), (torch.randn(3, 4, 8), torch.randn(3, 7, 6))


@mechanism(
    "top_down",
    family="dense attention",
    over="senders",
    steps=depends("iterations", 3),
    values="per pair",
    update="identity",
    source="arXiv:2209.02567",
    promises=("normalised", "masks", "any sender order", "any receiver order"),
    sender_axes={"0": 1, "weight": 1},
    receiver_axes={"1": 1, "weight": 0, "output": 1},
    largest_input=1e15,  # predictions times children must fit float32
    example=_example,
)
class TopDownAttention(nn.Module):
    """Explain children by the parents that predict them.

    U_ij = T_ij v_j,    w_i = softmax_j(beta <V_i, U_ij>),    V_i <- sum_j w_ij U_ij

    The parents are the senders here, because they predict. Each child divides itself among parents, which is the
    single-parent constraint of routing; attention bottom-up would divide each parent among children.

    Args:
        children, parents: how many of each.
        child_dim, parent_dim: their pose sizes.
        iterations: of the equation, at least 1.
        beta: multiplies the scores; 1 / sqrt(child_dim) when None.
        accumulate: add the scores up over the iterations.

    Shapes: parents (batch, parents, parent_dim), children (batch, children, child_dim), mask bool (batch, parents)
        -> children (batch, children, child_dim).

    Reads as: couplings[b, 0, i, j] is the share of child i that parent j explains.

    Deviates: transforms start normal with deviation 1 / sqrt(parent_dim), ours: a prediction is as long as its parent.

    Reference: arXiv:2209.02567, eq. 4 to 6.
    """

    def __init__(
        self,
        children: int,
        parents: int,
        child_dim: int,
        parent_dim: int,
        *,
        iterations: int = 3,
        beta: float | None = None,
        accumulate: bool = False,
    ) -> None:
        super().__init__()
        check_positive(children=children, parents=parents, child_dim=child_dim, parent_dim=parent_dim)
        _check(iterations, beta)
        self.iterations, self.accumulate = iterations, accumulate
        self.beta = child_dim**-0.5 if beta is None else beta
        self.weight = nn.Parameter(torch.empty(children, parents, parent_dim, child_dim))
        nn.init.normal_(self.weight, std=parent_dim**-0.5)
        self.coupling = Coupling("senders")

    def predictions(self, parents: Tensor) -> Tensor:
        """U: (batch, parents, parent_dim) -> (batch, children, parents, child_dim)."""
        return DenseVotes(parents, self.weight).dense().squeeze(1)

    def forward(self, parents: Tensor, children: Tensor, mask: Tensor | None = None) -> Tensor:
        # Predictions are the same in every iteration and used twice in each, so storing them is cheaper.
        votes = DenseVotes(parents, self.weight, method="stored")
        return _explain(votes, children, self.coupling, self.iterations, self.beta, self.accumulate, mask)[0]

    def extra_repr(self) -> str:
        children, parents, parent_dim, child_dim = self.weight.shape
        return (
            f"{parents} x {parent_dim} -> {children} x {child_dim}, iterations={self.iterations}, beta={self.beta:.4g}"
        )
