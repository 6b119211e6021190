"""Token-aware average pooling (TAP): each token takes in its neighbourhood, with a reach of its own.

Source: Guo, Stutz, Schiele 2023, arXiv:2303.11126.
Cost: 9 C K + 9 K^2 multiply-adds a token for the predictor, and K - 1 box filters of four additions each.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Signal, mechanism
from mereo.core.shapes import image_size
from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_count, check_positive


def box_mean(maps: Tensor, dilation: int) -> Tensor:
    """The mean of 3 x 3 cells that lie `dilation` apart; cells outside of the map are 0 and count.

    Shapes: (..., height, width) -> the same.
    """
    height, width = maps.shape[-2:]
    padded = F.pad(maps, (dilation,) * 4)
    rows = sum(padded[..., step * dilation : step * dilation + height, :] for step in range(3))
    total: Tensor = sum(rows[..., step * dilation : step * dilation + width] for step in range(3))  # type: ignore
    return total / 9


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return TokenAwarePooling(5, (4, 3), 3, prefix=1), (torch.randn(2, 13, 5),)


@mechanism(
    "token_aware_pooling",
    family="mixer",
    source="arXiv:2303.11126",
    records="gates",
    interface="tokens",
    aliases=("tap",),
    example=_example,
)
class TokenAwarePooling(nn.Module):
    """Replace each token by a weighted sum of means over neighbourhoods of several sizes.

    out = sum_d p_d m_d(x),  m_0(x) = x,  m_d the mean of 3 x 3 cells d apart,  d < K
    p = softmax_d(conv3x3(norm(conv3x3(x))))

    Args:
        dim: channels.
        size: rows and columns of the map.
        num_scales: K; 1 is the identity, without parameters.
        prefix: tokens before the patches, which stay as they are.

    Shapes: tokens (batch, prefix + rows * columns, dim) -> the same; gates (batch, rows, columns, num_scales).

    Deviates: the code released with the paper takes the square root of the number of tokens for rows and columns, and
        keeps the parameters of one scale, which have no effect.

    Reference: arXiv:2303.11126, section 4.1; the start is PyTorch's, as in the authors' code.
    """

    def __init__(self, dim: int, size: int | tuple[int, int], num_scales: int = 4, prefix: int = 0) -> None:
        super().__init__()
        check_positive(dim=dim)
        check_count(1, num_scales=num_scales)
        check_count(0, prefix=prefix)
        self.size, self.num_scales, self.prefix = image_size(size), num_scales, prefix
        self.predictor = nn.Sequential(
            nn.Conv2d(dim, num_scales, 3, padding=1, bias=False),
            nn.BatchNorm2d(num_scales),
            nn.Conv2d(num_scales, num_scales, 3, padding=1, bias=False),
        ) if num_scales > 1 else None  # fmt: skip
        self.gates = Signal("gates")

    def forward(self, tokens: Tensor) -> Tensor:
        count = self.prefix + self.size[0] * self.size[1]
        if tokens.dim() != 3 or tokens.shape[1] != count:
            raise UsageError(f"tokens are {tuple(tokens.shape)}; they must be (batch, {count}, dim).")
        if self.predictor is None:
            return tokens
        maps = tokens[:, self.prefix :].mT.unflatten(2, self.size)
        scores = self.predictor(maps)
        shares = scores.to(accumulation_type(scores)).softmax(1).to(maps.dtype).permute(0, 2, 3, 1)
        shares = self.gates(shares).permute(0, 3, 1, 2)
        pooled = shares[:, :1] * maps
        for dilation in range(1, self.num_scales):
            pooled = pooled + shares[:, dilation : dilation + 1] * box_mean(maps, dilation)
        return torch.cat((tokens[:, : self.prefix], pooled.flatten(2).mT), 1)

    def extra_repr(self) -> str:
        return f"size={self.size}, num_scales={self.num_scales}"
