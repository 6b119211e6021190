"""Position attention: every place of a map adds a mixture of all places, with a learned weight that starts at 0.

Source: Fu, Liu, Tian, Li, Bao, Fang, Lu 2019, arXiv:1809.02983, section 3.2; similar: arXiv:1805.08318 (SAGAN).
Cost: N C (2 d + C) + N^2 (d + C) multiply-adds an image (N places, C channels, keys of d numbers).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Coupling, bounded, mechanism
from mereo.core.kernels.attention import attend
from mereo.errors import UsageError, check_positive


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return PositionAttention(8, 3), (torch.randn(2, 8, 7, 1),)


@mechanism(
    "position_attention",
    family="dense attention",
    over="senders",
    steps=1,
    values="shared",
    update="residual",
    source="arXiv:1809.02983",
    promises=("normalised", "any sender order", "any receiver order", "any length"),
    lacks={"couplings only": "the map itself goes past attention"},
    sender_axes={"0": 2},
    receiver_axes={"0": 2, "output": 2},
    interface="maps",
    example=_example,
)
class PositionAttention(nn.Module):
    """Add to each place of a map a weighted sum of the values of all places.

    (q, k, v)_p = W x_p + b,   A = softmax over sources p' of q_p . k_p',   out_p = x_p + gamma sum_p' A_pp' v_p'

    Args:
        dim: channels.
        key_dim: size of queries and keys; dim / groups / 8, at least 1, by default.
        groups: parts of the channels that attend each by itself, with weights of its own; divides `dim`.
        scale: divide the scores by sqrt(key_dim), as the paper does not.

    Shapes: maps (batch, dim, rows, columns) -> the same; couplings (batch, groups, places, places), places row by row.

    Reads as: couplings[b, g, r, s] is the share of place s in what place r adds to group g of its channels.

    Deviates: groups and the scale are ours; one group without the scale is the paper's.

    Reference: arXiv:1809.02983, section 3.2.
    """

    def __init__(self, dim: int, key_dim: int | None = None, *, groups: int = 1, scale: bool = False) -> None:
        super().__init__()
        check_positive(dim=dim, groups=groups)
        if dim % groups:
            raise UsageError(f"dim is {dim} and groups {groups}; dim must be a multiple of groups.")
        self.group_dim = dim // groups
        self.key_dim = max(self.group_dim // 8, 1) if key_dim is None else key_dim
        check_positive(key_dim=self.key_dim)
        self.groups, self.scale = groups, self.key_dim**-0.5 if scale else 1.0
        self.sizes = (self.key_dim, self.key_dim, self.group_dim)
        self.weight = nn.Parameter(torch.empty(groups * sum(self.sizes), self.group_dim))
        self.bias = nn.Parameter(torch.zeros(groups * sum(self.sizes)))
        self.gamma = nn.Parameter(torch.zeros(groups))
        self.coupling = Coupling("senders")
        for matrices in self.weight.detach().unflatten(0, (groups, -1)).split(self.sizes, 1):
            bound = (6 / (matrices.shape[1] + self.group_dim)) ** 0.5  # Xavier, each matrix by itself
            nn.init.uniform_(matrices, -bound, bound)

    def project(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: (batch, places, dim) -> (batch, groups, places, key_dim or dim / groups)."""
        tokens = bounded(tokens)
        if self.groups == 1:
            parts = F.linear(tokens, self.weight, self.bias).unsqueeze(1)
        else:
            weight, bias = (x.unflatten(0, (self.groups, -1)) for x in (self.weight, self.bias))
            grouped = tokens.unflatten(-1, (self.groups, -1))
            parts = torch.einsum("bngc,goc->bgno", grouped, weight) + bias.unsqueeze(1)
        queries, keys, values = bounded(parts).split(self.sizes, -1)
        return queries, keys, values

    def gather(self, tokens: Tensor) -> Tensor:
        """gamma sum_p' A_pp' v_p': (batch, places, dim) -> the same."""
        # On a CPU the fused call keeps scores in half precision, where they overflow to infinity and then NaN.
        overflows = tokens.dtype == torch.float16 and tokens.device.type == "cpu"
        method = "plain" if overflows else "auto"
        gathered = attend(*self.project(tokens), self.coupling, scale=self.scale, method=method)
        return (self.gamma.view(-1, 1, 1) * gathered).transpose(1, 2).flatten(2)

    def forward(self, maps: Tensor) -> Tensor:
        return maps + self.gather(maps.flatten(2).mT).mT.reshape(maps.shape)

    def extra_repr(self) -> str:
        scale = ", scale=True" if self.scale != 1 else ""
        return f"{self.groups * self.group_dim}, key_dim={self.key_dim}, groups={self.groups}{scale}"
