"""Top-k attention: a token attends to the `k` tokens that fit it best.

Source: arXiv:1912.11637, section 2.2.
Cost: as dense attention, and one top-k over the senders of each receiver.
"""

import torch
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.errors import check_positive


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return TopKAttention(6, k=3), (torch.randn(2, 8, 6),)


@mechanism(
    "top_k_attention",
    family="sparse attention",
    over="senders",
    values="shared",
    update="identity",
    source="arXiv:1912.11637",
    promises=("normalised", "any sender order", "any receiver order", "any length"),
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    largest_input=1e15,  # queries times keys must fit float32
    example=_example,
)
class TopKAttention(nn.Module):
    """Let each token become a weighted sum of the `k` tokens with the highest scores.

    out_r = sum_s softmax_s(the k largest of <A x_r, B x_s> / sqrt(D)) C x_s

    Args:
        dim: size of the tokens.
        k: how many tokens each attends to.

    Shapes: tokens (batch, tokens, dim) -> (batch, tokens, dim).

    Reads as: couplings[b, 0, r, s] is the share of token s in token r, 0 for all but k of them.
    """

    def __init__(self, dim: int, k: int) -> None:
        super().__init__()
        check_positive(dim=dim, k=k)
        self.query, self.key, self.value = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.coupling = Coupling("senders", "top_k", top_k=k)

    def forward(self, tokens: Tensor) -> Tensor:
        scores = self.query(tokens) * tokens.shape[-1] ** -0.5 @ self.key(tokens).transpose(1, 2)
        return self.coupling(scores.unsqueeze(1)).squeeze(1) @ self.value(tokens)
