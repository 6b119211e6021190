"""The block of a transformer: a mechanism among tokens and a feed-forward network, each behind a norm.

Source: Dosovitskiy et al. 2021, arXiv:2010.11929, eq. 2 and 3.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from mereo.layers.feed_forward import FeedForward
from mereo.layers.self_attention import SelfAttention
from mereo.layers.stochastic_depth import StochasticDepth
from mereo.mechanisms.slots import Place, fill_slot

EPS = 1e-6


class TransformerBlock(nn.Module):
    """x <- x + attention(norm x);  x <- x + feed_forward(norm x).

    Args:
        dim: of the tokens.
        num_heads: of the attention, or of the mechanism in its place.
        hidden: of the feed-forward network.
        qkv_bias: biases of queries, keys and values.
        drop_path: rate of stochastic depth.
        mechanism, mechanism_args, size, prefix: see `use`; self-attention by default.

    Shapes: (batch, tokens, dim) -> the same.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        hidden: int,
        qkv_bias: bool = True,
        drop_path: float = 0.0,
        *,
        mechanism: str | None = None,
        mechanism_args: Mapping[str, Any] | None = None,
        size: tuple[int, int] | None = None,
        prefix: int = 0,
    ) -> None:
        super().__init__()
        self.dim, self.num_heads = dim, num_heads
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=EPS), nn.LayerNorm(dim, eps=EPS)
        self.attn: nn.Module = SelfAttention(dim, num_heads, qkv_bias)
        self.mlp = FeedForward(dim, hidden)
        self.drop_path1, self.drop_path2 = StochasticDepth(drop_path), StochasticDepth(drop_path)
        if mechanism is not None:
            self.use(mechanism, mechanism_args, size=size, prefix=prefix)

    def use(
        self,
        mechanism: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        size: tuple[int, int] | None = None,
        prefix: int = 0,
    ) -> None:
        """Put a mechanism in the place of the attention.

        Args:
            mechanism: its name in the catalogue.
            arguments: of its constructor that the block does not fill in.
            size: rows and columns of the patches, for mechanisms that need them.
            prefix: tokens before the patches; a mechanism of maps gives them the mean of what the patches receive.
        """
        place = Place(self.dim, self.num_heads, size, prefix=prefix, host=self.attn)
        self.attn = fill_slot(mechanism, "tokens", place, arguments)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path1(self.attn(self.norm1(x)))
        return x + self.drop_path2(self.mlp(self.norm2(x)))
