"""Window attention: every cell of a map attends to the cells of its own window.

Source: Ding et al. 2022, arXiv:2204.03645, section 3.2 (spatial window attention; no shift, no relative bias).
Cost: projections 4 N C^2 multiply-adds an image of N cells, scores and combination 2 N P^2 C for windows of P x P.
"""

import torch
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.core.kernels.attention import attend
from mereo.core.shapes import image_size
from mereo.core.topology import Blocks
from mereo.errors import check_heads, check_positive, check_probability


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return WindowAttention(8, 2, window_size=3), (torch.randn(2, 5, 7, 8),)


@mechanism(
    "window",
    family="local attention",
    over="senders",
    values="shared",
    update="linear",
    source="arXiv:2204.03645",
    promises=("normalised",),
    lacks={"couplings only": "cells of the padding keep their shares"},
    largest_input=1e15,  # queries times keys must fit float32
    interface="maps",
    channels_last=True,
    example=_example,
)
class WindowAttention(nn.Module):
    """Replace each cell of a map by a weighted sum of the values of the cells in its window.

    q, k, v = W x + b   for each head;   out = W_o [softmax(q k^T / sqrt(C / heads)) v, ...] + b_o   inside each window

    Args:
        dim: channels of the map.
        num_heads: independent sets of couplings; divides `dim`.
        window_size: cells down and across; one number for a square.
        qkv_bias: biases of queries, keys and values.
        attn_drop: dropout of the couplings.
        proj_drop: dropout of the output.

    Shapes: maps (batch, rows, columns, dim) -> the same. A map that windows do not divide is padded with zeros below
        and to the right; cells of the padding take part, with the biases as their keys and values.

    Reads as: couplings[b, h, r, s] is the share of cell s in the output of head h for cell r, both numbered row by
        row over the whole map; 0 where they share no window. The share of the padding is missing from the sum.

    Reference: arXiv:2204.03645, section 3.2.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        window_size: int | tuple[int, int] = 7,
        *,
        qkv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        check_probability(attn_drop=attn_drop, proj_drop=proj_drop)
        check_heads(dim, num_heads)
        check_positive(window_size=window_size if isinstance(window_size, int) else min(window_size))
        self.num_heads, self.window_size = num_heads, image_size(window_size)
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.coupling = Coupling("senders", dropout=attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, maps: Tensor) -> Tensor:
        blocks = Blocks((maps.shape[1], maps.shape[2]), self.window_size)
        windows = blocks.cut(maps).unflatten(1, self.window_size)
        parts = self.qkv(windows).flatten(1, 2).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        merged = attend(q, k, v, self.coupling, tiles=blocks).transpose(1, 2).reshape(windows.shape)
        return self.proj_drop(blocks.join(self.proj(merged)))

    def extra_repr(self) -> str:
        return f"{self.proj.in_features}, num_heads={self.num_heads}, window_size={self.window_size}"
