"""Lambda attention: the context of each cell becomes a linear function, which is applied to the queries of the cell.

Source: Bello 2021, arXiv:2102.08602 (LambdaNetworks), sections 3.1 and 3.2.
Cost: N d p (scope^2 + heads + 1) multiply-adds an image of N cells, d and p the sizes of queries and values.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.core.shapes import flat_cells
from mereo.errors import UsageError, check_positive

LARGEST_SCOPE = 1023
"""Far beyond the maps of any network."""


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return LambdaAttention(8, 2, key_dim=3, scope=3).eval(), (torch.randn(2, 8, 7, 1),)


@mechanism(
    "lambda_attention",
    family="dense attention",
    over="senders",
    steps=1,
    values="shared",
    update="linear",
    source="arXiv:2102.08602",
    promises=("normalised", "any length"),
    lacks={"couplings only": "values also reach the cells around them through a convolution"},
    sender_axes={"0": 2},
    largest_input=1e10,  # queries times values must fit float32
    interface="maps",
    example=_example,
)
class LambdaAttention(nn.Module):
    """Summarise all cells, and the cells around each cell, in a matrix that maps queries to outputs.

    lambda_n = sum_m softmax(k)_m v_m^T + sum_m E[m - n] v_m^T + e 1^T,   out[h, n] = lambda_n^T q[h, n]

    The first sum is over all cells, the second over the square of cells around cell n, a convolution of the values with
    the bias e. Queries and values are batch-normalised; all heads share keys and values.

    Args:
        channels: of the maps.
        num_heads: independent queries; divides `channels`. A value has channels / num_heads entries.
        key_dim: size of queries and keys, d.
        scope: side of the square around a cell in which positions count, an odd number.
        stride: 1; or 2, which averages the outputs of 2 x 2 cells.

    Shapes: maps (batch, channels, rows, columns) -> (batch, channels, rows / stride, columns / stride), rounded up;
        couplings (batch, 1, key_dim, cells), cells row by row.

    Reads as: couplings[b, 0, c, s] is the share of cell s in row c of the matrix that all cells have in common.

    Deviates: initialisation, and a bias for the convolution of positions, are timm's, which has trained weights.

    Reference: arXiv:2102.08602, eq. 1 and 2 (lambdas), section 3.2 (lambda convolution, several queries a value).
    """

    def __init__(
        self, channels: int, num_heads: int = 4, *, key_dim: int = 16, scope: int = 23, stride: int = 1
    ) -> None:
        super().__init__()
        check_positive(channels=channels, num_heads=num_heads, key_dim=key_dim, scope=scope)
        if channels % num_heads:
            raise UsageError(f"channels is {channels} and num_heads {num_heads}; give a divisor.")
        if stride not in (1, 2):
            raise UsageError(f"stride is {stride}; it must be 1 or 2.")
        if scope % 2 == 0 or scope > LARGEST_SCOPE:
            raise UsageError(f"scope is {scope}; it must be odd, so that a cell is in the middle, and at most 1023.")
        self.num_heads, self.key_dim, self.value_dim = num_heads, key_dim, channels // num_heads
        self.scope, self.stride = scope, stride
        self.qkv = nn.Conv2d(channels, num_heads * key_dim + key_dim + self.value_dim, 1, bias=False)
        self.query_norm, self.value_norm = nn.BatchNorm2d(num_heads * key_dim), nn.BatchNorm2d(self.value_dim)
        self.positions = nn.Conv2d(1, key_dim, scope, padding=scope // 2)
        self.coupling = Coupling("senders")
        self.coupling.of_places = False
        nn.init.trunc_normal_(self.qkv.weight, std=channels**-0.5)
        nn.init.trunc_normal_(self.positions.weight, std=key_dim**-0.5)

    def forward(self, maps: Tensor) -> Tensor:
        q, k, v = self.qkv(maps).split((self.num_heads * self.key_dim, self.key_dim, self.value_dim), 1)
        queries = flat_cells(self.query_norm(q)).unflatten(1, (self.num_heads, self.key_dim))
        values = self.value_norm(v)
        shares = self.coupling(k.flatten(2).unsqueeze(1)).squeeze(1)
        content = flat_cells(values) @ shares.mT  # (batch, value_dim, key_dim)
        around = self.positions(values.flatten(0, 1).unsqueeze(1)).flatten(2).unflatten(0, values.shape[:2])
        out = torch.einsum("bhdn,bpdn->bhpn", queries, around + content.unsqueeze(-1))
        out = out.flatten(1, 2).unflatten(2, maps.shape[2:])
        return F.avg_pool2d(out, 2, ceil_mode=True) if self.stride == 2 else out

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, key_dim={self.key_dim}, scope={self.scope}, stride={self.stride}"
