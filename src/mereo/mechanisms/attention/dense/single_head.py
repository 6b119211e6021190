"""Single-head self-attention on a part of the channels; the other channels pass by.

Source: Yun, Ro 2024, arXiv:2401.16456 (SHViT), section 3.2.
Cost: p (2 d + p) N + (d + p) N^2 + C^2 N multiply-adds an image (N cells, C channels, p attended, keys of d).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.core.kernels.attention import attend
from mereo.core.shapes import flat_cells
from mereo.core.squash import bounded
from mereo.errors import UsageError, check_positive


def _conv_norm(inputs: int, outputs: int, norm_weight: float = 1.0) -> nn.Sequential:
    """norm(conv(x)), a 1x1 convolution without a bias, which folds for inference."""
    norm = nn.BatchNorm2d(outputs)
    nn.init.constant_(norm.weight, norm_weight)
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), norm)


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return SingleHeadAttention(10, 4, key_dim=3).eval(), (torch.randn(2, 10, 7, 1),)


@mechanism(
    "single_head",
    family="dense attention",
    over="senders",
    steps=1,
    values="shared",
    update="linear",
    source="arXiv:2401.16456",
    promises=("normalised", "any sender order", "any receiver order", "any length"),
    lacks={"couplings only": "channels that are not attended go past attention"},
    zero_gradients={"norm.bias": "in training the batch normalisation of queries, keys and values takes it out"},
    sender_axes={"0": 2},
    receiver_axes={"0": 2, "output": 2},
    interface="maps",
    example=_example,
)
class SingleHeadAttention(nn.Module):
    """Let every cell attend to all cells with one head on the first channels, and mix the result with the others.

    z = groupnorm(x_1),  (q, k, v) = W_qkv z,  y_1 = softmax(q k^T / sqrt(d)) v,  out = W_o relu([y_1, x_2])

    Args:
        dim: channels.
        attended: how many of them, the first ones, go through attention (x_1); the rest (x_2) is neither normalised
            nor projected before W_o.
        key_dim: size d of queries and keys.
        norm_weight: start of the weights of the last batch normalisation; with 0 the output starts as zero.

    Shapes: maps (batch, dim, height, width) -> the same; couplings (batch, 1, cells, cells), cells row by row.

    Reads as: couplings[b, 0, r, s] is the share of cell s in the attended channels of cell r.

    Reference: arXiv:2401.16456, eq. 3 and 4; a group normalisation of one group, which is over channels and cells
        together, and W_qkv and W_o followed by batch normalisation, as in the authors' code.
    """

    def __init__(self, dim: int, attended: int, key_dim: int = 16, *, norm_weight: float = 0.0) -> None:
        super().__init__()
        check_positive(dim=dim, attended=attended, key_dim=key_dim)
        if attended > dim:
            raise UsageError(f"attended is {attended}; it must be at most dim, {dim}.")
        self.attended, self.rest, self.key_dim = attended, dim - attended, key_dim
        self.norm = nn.GroupNorm(1, attended)
        self.qkv = _conv_norm(attended, 2 * key_dim + attended)
        self.coupling = Coupling("senders")
        self.output = _conv_norm(dim, dim, norm_weight)

    def exchange(self, maps: Tensor) -> Tensor:
        """y_1 of the attended channels: (batch, attended, height, width) -> the same."""
        # The norm would copy these channels, which are not contiguous; bounding them is that copy.
        qkv = flat_cells(self.qkv(self.norm(bounded(maps)))).mT.unsqueeze(1)
        q, k, v = qkv.split((self.key_dim, self.key_dim, self.attended), -1)
        # Fused attention needs keys and values of one size.
        return attend(q, k, v, self.coupling, method="plain").squeeze(1).mT.unflatten(2, maps.shape[2:])

    def forward(self, maps: Tensor) -> Tensor:
        first, rest = maps.split((self.attended, self.rest), 1)
        return self.output(F.relu(torch.cat((self.exchange(first), rest), 1)))

    def extra_repr(self) -> str:
        return f"{self.attended + self.rest}, attended={self.attended}, key_dim={self.key_dim}"
