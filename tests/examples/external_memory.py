"""External attention: tokens read from learned slots that all images share.

Source: arXiv:2105.02358, eq. 5 and 6.
Cost: 4 N M D FLOPs for N tokens and M slots, linear in the tokens.
"""

import torch
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.errors import check_positive


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return ExternalMemory(6, slots=5), (torch.randn(2, 7, 6),)


@mechanism(
    "external_memory",
    family="memory",
    over="senders",
    values="shared",
    update="identity",
    source="arXiv:2105.02358",
    promises=("normalised", "any sender order", "any receiver order"),
    sender_axes={"keys": 0, "values": 0},
    receiver_axes={"0": 1, "output": 1},
    example=_example,
)
class ExternalMemory(nn.Module):
    """Let each token become a weighted sum of learned values, by its fit to learned keys.

    out_r = sum_m softmax_m(<x_r, k_m>) v_m

    Args:
        dim: size of the tokens.
        slots: how many keys and values are learned.

    Shapes: tokens (batch, tokens, dim) -> (batch, tokens, dim).

    Reads as: couplings[b, 0, r, m] is the share of slot m in token r.

    Deviates: only the softmax, without the paper's second normalisation over the tokens.
    """

    def __init__(self, dim: int, slots: int) -> None:
        super().__init__()
        check_positive(dim=dim, slots=slots)
        self.keys, self.values = (nn.Parameter(dim**-0.5 * torch.randn(slots, dim)) for _ in range(2))
        self.coupling = Coupling("senders")

    def forward(self, tokens: Tensor) -> Tensor:
        return self.coupling((tokens @ self.keys.T).unsqueeze(1)).squeeze(1) @ self.values
