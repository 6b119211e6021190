"""Grid attention: self-attention among cells spread evenly over the image, so that distant ones meet.

Source: Tu et al. 2022, arXiv:2204.01697, section 3.2 and figure 3.
Cost: 4 HW C^2 multiply-adds of the projections and 2 HW G^2 C of the attention: linear in the number of cells.
"""

import torch
from torch import Tensor, nn

from mereo.core import mechanism
from mereo.core.topology import Spread
from mereo.mechanisms.attention.local.relative_attention import RelativeAttention


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return GridAttention(8, (2, 3), head_dim=4), (torch.randn(2, 4, 6, 8),)


@mechanism(
    "grid_attention",
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
class GridAttention(RelativeAttention):
    """Let each cell attend to P x Q cells spread evenly over the image, with a bias for their places on that grid.

    Cell (y, x) of H x W attends to all cells (y + k H / P, x + l W / Q), modulo H and W; softmax as in block attention.

    Args: as `RelativeAttention`; `window` is (P, Q), the rows and columns of the grid.

    Shapes: maps (batch, rows, columns, dim) -> (batch, rows, columns, out_dim), with rows a multiple of P and columns
        one of Q.

    Reads as: couplings[b, h, i, j] over the whole image is how much cell i takes from cell j; 0 between groups.

    Reference: arXiv:2204.01697, section 3.2.
    """

    topology = Spread
