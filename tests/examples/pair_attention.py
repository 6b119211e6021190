"""Pair attention: a token attends to all pairs of tokens at once.

Source: arXiv:2306.02896, section 4.
Cost: 2 N^3 D FLOPs for N tokens.
"""

import torch
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.errors import check_positive


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return PairAttention(6), (torch.randn(2, 5, 6),)


@mechanism(
    "pair_attention",
    family="higher-order attention",
    over="senders",
    values="shared",
    update="identity",
    source="arXiv:2306.02896",
    promises=("normalised", "any sender order", "any receiver order", "any length"),
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    tuple_size=2,
    largest_input=1e10,  # three tokens are multiplied, and must fit float32
    example=_example,
)
class PairAttention(nn.Module):
    """Let each token become a weighted sum of products of the values of two tokens.

    out_r = sum_st softmax_st(sum_c (A x_r)_c (B x_s)_c (C x_t)_c / D) (E x_s) (F x_t)

    Args:
        dim: size of the tokens.

    Shapes: tokens (batch, tokens, dim) -> (batch, tokens, dim).

    Reads as: couplings[b, 0, r, s n + t] is the share of the pair (s, t) of n tokens in token r.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        check_positive(dim=dim)
        self.query, self.key, self.key2, self.value, self.value2 = (nn.Linear(dim, dim, bias=False) for _ in range(5))
        self.coupling = Coupling("senders")

    def forward(self, tokens: Tensor) -> Tensor:
        keys = (self.key(tokens).unsqueeze(2) * self.key2(tokens).unsqueeze(1)).flatten(1, 2)
        values = (self.value(tokens).unsqueeze(2) * self.value2(tokens).unsqueeze(1)).flatten(1, 2)
        scores = self.query(tokens) / tokens.shape[-1] @ keys.transpose(1, 2)
        return self.coupling(scores.unsqueeze(1)).squeeze(1) @ values
