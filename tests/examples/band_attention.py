"""Band attention: a token attends to the tokens at most `radius` places away.

Source: arXiv:2004.05150, section 3.1 (sliding window).
Cost: here as dense attention with a mask; a kernel for bands takes 4 N (2 radius + 1) D FLOPs.
"""

import torch
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.errors import check_positive


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return BandAttention(6, radius=2), (torch.randn(2, 8, 6),)


@mechanism(
    "band_attention",
    family="local attention",
    over="senders",
    values="shared",
    update="identity",
    source="arXiv:2004.05150",
    promises=("normalised", "any length"),
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    largest_input=1e15,  # queries times keys must fit float32
    example=_example,
)
class BandAttention(nn.Module):
    """Let each token become a weighted sum of the tokens near it.

    out_r = sum_s softmax_s(<A x_r, B x_s> / sqrt(D) where |r - s| <= radius) C x_s

    Args:
        dim: size of the tokens.
        radius: how far a token attends, in places.

    Shapes: tokens (batch, tokens, dim) -> (batch, tokens, dim).

    Reads as: couplings[b, 0, r, s] is the share of token s in token r, 0 outside the band.
    """

    def __init__(self, dim: int, radius: int) -> None:
        super().__init__()
        check_positive(dim=dim, radius=radius)
        self.radius = radius
        self.query, self.key, self.value = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.coupling = Coupling("senders")

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        band = (places[:, None] - places).abs() <= self.radius
        scores = self.query(tokens) * tokens.shape[-1] ** -0.5 @ self.key(tokens).transpose(1, 2)
        return self.coupling(scores.unsqueeze(1), band).squeeze(1) @ self.value(tokens)
