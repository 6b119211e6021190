"""Index feedback: a state activates the indices of concepts, and each index writes its embedding back into the state.

Source: Tresp, Sharifzadeh, Konopatzki, Ma 2020, arXiv:2001.11027; its equations were not available, and the operations
follow its abstract and the follow-up of the same authors, arXiv:2109.13392.
Cost: 4 r K FLOPs for a state of size r and K concepts that compete.
"""

import torch
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.errors import UsageError, check_count


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return IndexFeedback(6, 5), (torch.randn(2, 3, 6),)


@mechanism(
    "index_feedback",
    family="memory",
    over="senders",
    values="shared",
    update="residual",
    source="arXiv:2001.11027",
    promises=("normalised", "masks", "any sender order", "any receiver order"),
    lacks={"couplings only": "the state itself is kept, and the embeddings are added to it"},
    sender_axes={"columns": 0},
    receiver_axes={"0": 1, "output": 1},
    reconstruction="the paper's equations were not available",
    example=_example,
)
class IndexFeedback(nn.Module):
    """Score concepts by a state, and add the expected embedding, or the embedding of a chosen concept, to the state.

    z_k = <a_k, sigmoid(q)> + b_k,   P(k) = softmax_k(z) over a group,   q' = q + sum_k P(k) a_k   or   q + a_k

    Args:
        dim: r, size of the state.
        num_concepts: K, how many concepts have an index.
        bias: learn b; otherwise it is 0.

    Shapes: states (batch, states, dim), mask bool (batch, concepts), True for the group that competes
        -> (batch, states, dim).

    Reads as: couplings[b, 0, n, k] is the probability that state n is read as concept k.

    Deviates: the equations are not available; the same embedding a_k leads up to the index and down again, as in the
        abstract. Embeddings start normal with variance 1 / r, which is ours.

    Reference: arXiv:2001.11027; the sigmoid follows arXiv:2109.13392.
    """

    def __init__(self, dim: int, num_concepts: int, *, bias: bool = False) -> None:
        super().__init__()
        check_count(1, dim=dim, num_concepts=num_concepts)
        self.columns = nn.Parameter(dim**-0.5 * torch.randn(num_concepts, dim))
        self.bias = nn.Parameter(torch.zeros(num_concepts)) if bias else None
        self.coupling = Coupling("senders")

    def scores(self, states: Tensor, span: slice = slice(None)) -> Tensor:
        """z of all concepts, or of a span of them: (..., dim) -> (..., concepts)."""
        if states.shape[-1:] != self.columns.shape[1:]:
            raise UsageError(
                f"states are {tuple(states.shape)}; they must be (batch, states, dim) with dim ="
                f" {self.columns.shape[1]}."
            )
        bias = None if self.bias is None else self.bias[span]
        return nn.functional.linear(states.sigmoid(), self.columns[span], bias)

    def shares(self, states: Tensor, mask: Tensor | None = None, span: slice = slice(None)) -> Tensor:
        """P among the concepts of a mask or a span, the others of which are not scored.

        Shapes: states (batch, states, dim), mask bool (batch or 1, concepts) -> (batch, states, concepts of the span).
        """
        group = None if mask is None else mask[:, None, None]
        return self.coupling(self.scores(states, span).unsqueeze(1), group).squeeze(1)

    def feed_back(self, states: Tensor, chosen: Tensor) -> Tensor:
        """q + a_k for the chosen concepts: (..., dim), int64 (...) -> (..., dim)."""
        return states + nn.functional.embedding(chosen, self.columns)

    def expected(self, states: Tensor, shares: Tensor, span: slice = slice(None)) -> Tensor:
        """q + sum_k P(k) a_k: (..., dim), (..., concepts of the span) -> (..., dim)."""
        return states + shares @ self.columns[span]

    def forward(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.expected(states, self.shares(states, mask))
