"""Depthwise attention: capsules attend to a coarser map of keys and values, which depthwise convolutions make.

Source: Geng, Wang, Xu 2024, arXiv:2411.01564, and the authors' code, https://github.com/ornamentt/Parsecaps
Cost: for N capsules of D numbers and a stride of 2: projections 2.5 N D^2, exchange N^2 D / 2 multiply-adds an image.
"""

import torch
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.core.kernels.attention import attend
from mereo.errors import UsageError, check_heads, check_positive


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return DepthwiseAttention(6, 2), (torch.randn(2, 4, 5, 6),)


def check_capsule_map(capsules: Tensor, dim: int) -> None:
    """UsageError unless capsules are (batch, rows, columns, dim)."""
    if capsules.dim() != 4 or capsules.shape[3] != dim:
        raise UsageError(f"capsules are {tuple(capsules.shape)}; they must be (batch, rows, columns, {dim}).")


@mechanism(
    "depthwise_attention",
    family="routing",
    over="senders",
    steps=1,
    values="shared",
    update="linear layer",
    source="arXiv:2411.01564",
    promises=("normalised",),
    zero_gradients={"linear.k.bias": "it adds the same to every score of a receiver, and the softmax takes that out"},
    largest_input=1e12,
    interface="maps",
    channels_last=True,
    example=_example,
)
class DepthwiseAttention(nn.Module):
    """Let every capsule of a map attend to the capsules of a coarser map.

    q = W_q dw_q(x) + b_q,   k = W_k dw_k(x) + b_k,   v = W_v dw_v(x) + b_v

    out = W_o softmax(q k^T / sqrt(D)) v + b_o

    Each dw is a 3x3 depthwise convolution of its own, without a bias; the one of the queries has stride 1.

    Args:
        dim: D, numbers in a capsule.
        num_heads: independent sets of couplings; divides `dim`. The scores are divided by sqrt(D) whatever it is.
        stride: of the convolutions for keys and values.

    Shapes: capsules (batch, rows, columns, dim) -> the same; couplings (batch, heads, rows * columns, ceil(rows /
        stride) * ceil(columns / stride)), both row by row.

    Reads as: couplings[b, h, r, s] is the share of cell s of the coarser map in what capsule r becomes.

    Deviates: the paper describes sparse axial attention, see `SparseAxialRouting`; this is what the authors' code runs.

    Reference: arXiv:2411.01564, the authors' code.
    """

    def __init__(self, dim: int, num_heads: int = 1, *, stride: int = 2) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_positive(stride=stride)
        self.num_heads, self.stride = num_heads, stride
        strides = {"q": 1, "k": stride, "v": stride}
        self.depthwise = nn.ModuleDict(
            {name: nn.Conv2d(dim, dim, 3, step, 1, groups=dim, bias=False) for name, step in strides.items()}
        )
        self.linear = nn.ModuleDict({name: nn.Linear(dim, dim) for name in strides})
        self.coupling = Coupling("senders")
        self.proj = nn.Linear(dim, dim)

    def _projected(self, name: str, maps: Tensor) -> Tensor:
        cells = self.linear[name](self.depthwise[name](maps).permute(0, 2, 3, 1).flatten(1, 2))
        heads: Tensor = cells.unflatten(2, (self.num_heads, -1)).transpose(1, 2)
        return heads

    def forward(self, capsules: Tensor) -> Tensor:
        dim = self.proj.in_features
        check_capsule_map(capsules, dim)
        maps = capsules.permute(0, 3, 1, 2)
        q, k, v = (self._projected(name, maps) for name in ("q", "k", "v"))
        attended = attend(q, k, v, self.coupling, scale=dim**-0.5)
        out: Tensor = self.proj(attended.transpose(1, 2).reshape(capsules.shape))
        return out

    def extra_repr(self) -> str:
        return f"{self.proj.in_features}, num_heads={self.num_heads}, stride={self.stride}"
