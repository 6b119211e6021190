"""Token selection by a learned score: the best `keep` tokens go on.

Source: arXiv:2106.02034, section 3.2, with a fixed number of tokens and no sampling.
Cost: 2 N D FLOPs and one top-k over N scores.
"""

import torch
from torch import Tensor, nn

from mereo.core import Signal, mechanism
from mereo.errors import UsageError, check_positive


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return TopTokens(6, keep=3), (torch.randn(2, 8, 6),)


@mechanism(
    "top_tokens",
    family="token selection",
    source="arXiv:2106.02034",
    records="kept tokens",
    promises=("any sender order", "any length"),
    sender_axes={"0": 1},
    example=_example,
)
class TopTokens(nn.Module):
    """Keep the tokens with the highest scores, in the order of their scores.

    s_n = sigmoid(<w, x_n> + b),   out = s_n x_n for the `keep` tokens with the largest s

    Args:
        dim: size of the tokens.
        keep: how many tokens go on.

    Shapes: tokens (batch, tokens, dim) -> (batch, keep, dim); kept tokens int64 (batch, keep).

    Deviates: kept tokens are multiplied by their score, through which it learns.
    """

    def __init__(self, dim: int, keep: int) -> None:
        super().__init__()
        check_positive(dim=dim, keep=keep)
        self.keep = keep
        self.score = nn.Linear(dim, 1)
        self.kept = Signal("kept tokens")

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.shape[1] < self.keep:
            raise UsageError(f"tokens has {tokens.shape[1]} tokens; it must have at least keep={self.keep}.")
        scores = self.score(tokens)
        kept = self.kept(scores.squeeze(-1).topk(self.keep, dim=1).indices).unsqueeze(-1)
        scored = tokens * scores.sigmoid()
        return scored.gather(1, kept.expand(-1, -1, tokens.shape[-1]))
