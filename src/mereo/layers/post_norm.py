"""Blocks of a transformer whose norms stand behind the residual connections: an encoder's and a decoder's.

Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1.
"""

import torch
from torch import Tensor, nn

from mereo.layers.feed_forward import FeedForward
from mereo.mechanisms.attention.dense.multi_head import MultiHeadAttention

Pair = tuple[Tensor, Tensor]
"""Keys and values, (batch, senders, dim) each."""


class PostNormEncoderBlock(nn.Module):
    """y = norm1(x + drop(attention(x))),   out = norm2(y + drop(feed_forward(y))), with ReLU.

    Args:
        dim, num_heads: of the attention.
        hidden_dim: of the feed-forward network.
        dropout: of the branches, of the hidden layer and of the couplings.

    Shapes: x (batch, tokens, dim), mask bool (batch, tokens) or None -> (batch, tokens, dim).
    """

    def __init__(self, dim: int, num_heads: int, hidden_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(dim, num_heads, attn_drop=dropout, proj_drop=dropout)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = FeedForward(dim, hidden_dim, dropout, nn.ReLU)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.norm1(x + self.attention(x, mask=mask))
        out: Tensor = self.norm2(x + self.mlp(x))
        return out


class PostNormDecoderBlock(nn.Module):
    """Causal attention, attention to a context, and a feed-forward network, each added and then normalised.

    y = norm1(x + drop(attention(x))),   z = norm2(y + drop(cross(y, context))),   out = norm3(z + drop(mlp(z)))

    The paths of a sample share its context. Earlier tokens are known by their cached keys and values.

    Args:
        dim, num_heads, hidden_dim, dropout: as for the encoder's block.

    Shapes: x (batch, paths, tokens, dim); context, keys and values of the samples, (batch, senders, dim); present bool
        (batch, senders); past, keys and values of the paths, (batch * paths, earlier tokens, dim), or None
        -> (batch, paths, tokens, dim), and `past` with these tokens.
    """

    def __init__(self, dim: int, num_heads: int, hidden_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(dim, num_heads, causal=True, attn_drop=dropout, proj_drop=dropout)
        self.cross = MultiHeadAttention(dim, num_heads, attn_drop=dropout, proj_drop=dropout)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = FeedForward(dim, hidden_dim, dropout, nn.ReLU)

    def read(self, memory: Tensor) -> Pair:
        """The context: keys and values of (batch, senders, dim), the same for every token."""
        return self.cross.key(memory), self.cross.value(memory)

    def forward(self, x: Tensor, context: Pair, present: Tensor, past: Pair | None = None) -> tuple[Tensor, Pair]:
        rows = x.flatten(0, 1)
        key, value = self.attention.key(rows), self.attention.value(rows)
        if past is not None:
            key, value = torch.cat((past[0], key), 1), torch.cat((past[1], value), 1)
        mixed = self.attention.mix(self.attention.query(rows), key, value, None)
        y = self.norm1(x + mixed.view(x.shape)).flatten(1, 2)
        y = self.norm2(y + self.cross.mix(self.cross.query(y), *context, present))
        return self.norm3(y + self.mlp(y)).view(x.shape), (key, value)
