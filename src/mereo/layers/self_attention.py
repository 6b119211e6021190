"""Self-attention of the cells of a map or the tokens of a sequence, with one projection for queries, keys, values."""

from torch import Tensor, nn

from mereo.core import Coupling
from mereo.core.kernels.attention import attend


class SelfAttention(nn.Module):
    """Every cell attends to all cells of its image.

    q, k, v = W x + b   for each head;   out = W_o [softmax(q k^T / sqrt(dim / heads)) v, ...] + b_o

    Args:
        dim: channels.
        num_heads: independent sets of couplings; divides `dim`.
        qkv_bias: the biases b.

    Shapes: cells (batch, *places, dim) -> the same; couplings (batch, heads, cells, cells), cells row by row.
    """

    def __init__(self, dim: int, num_heads: int, qkv_bias: bool = True) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.coupling = Coupling("senders")
        self.proj = nn.Linear(dim, dim)

    def mix(self, cells: Tensor) -> Tensor:
        """[softmax(q k^T / sqrt(dim / heads)) v, ...], before W_o. Shapes: as for the layer."""
        parts = self.qkv(cells).flatten(1, -2).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        return attend(q, k, v, self.coupling).transpose(1, 2).reshape(cells.shape)

    def forward(self, cells: Tensor) -> Tensor:
        return self.proj(self.mix(cells))
