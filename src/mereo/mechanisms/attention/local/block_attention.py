"""Block attention: self-attention inside windows of neighbouring cells.

Source: Tu et al. 2022, arXiv:2204.01697, section 3.2 and figure 3.
Cost: 4 HW C^2 multiply-adds of the projections and 2 HW P^2 C of the attention: linear in the number of cells.
"""

import torch
from torch import Tensor, nn

from mereo.core import mechanism
from mereo.core.topology import Blocks
from mereo.mechanisms.attention.local.relative_attention import RelativeAttention


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return BlockAttention(8, (2, 3), head_dim=4), (torch.randn(2, 4, 6, 8),)


@mechanism(
    "block_attention",
    family="local attention",
    over="senders",
    values="shared",
    update="linear",
    source="arXiv:2204.01697",
    promises=("normalised",),
    largest_input=1e15,  # queries times keys must fit float32
    interface="maps",
    channels_last=True,
    example=_example,
)
class BlockAttention(RelativeAttention):
    """Let each cell attend to the cells of its window of P x Q neighbours, with a bias for their relative positions.

    out = B softmax(q k^T / sqrt(head_dim) + b) v inside each window,   q, k, v = A x

    Args: as `RelativeAttention`; `window` is (P, Q).

    Shapes: maps (batch, rows, columns, dim) -> (batch, rows, columns, out_dim), with rows a multiple of P and columns
        one of Q.

    Reads as: couplings[b, h, i, j] over the whole image is how much cell i takes from cell j; 0 between windows.

    Reference: arXiv:2204.01697, section 3.2.
    """

    topology = Blocks
