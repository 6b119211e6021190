"""Tensor attention in a decoder: a token attends to pairs before it, so that one layer finds triples that fit.

x_0 = embedding + positions,  y = x + TA(LN(x)),  x' = y + FF(LN(y)),  scores = W LN(x_L)

Source: arXiv:2310.04064 (attention) and arXiv:2306.02896 (Match3 and the layer); neither has a network that is trained.
Cost: see `mereo.mechanisms.attention.TensorAttention`; 4 C F FLOPs a token and layer for the channels.
"""

import math

import torch
from torch import Tensor, nn

from mereo.errors import UsageError, check_heads, check_positive
from mereo.layers import DecoderBlock
from mereo.mechanisms.attention import TensorAttention
from mereo.models.registry import register_model
from mereo.models.sequence_model import SequenceModel

SPREAD = 0.5
"""Deviation of the positions at the start."""


class TensorTransformer(SequenceModel):
    """Score tokens by causal tensor attention, such as whether a token is in a triple that sums to 0 (data set match3).

    Tokens are numbers modulo V, whose embedding starts as cos(2 pi f t / V), sin(2 pi f t / V), f = 1 .. C / 2: sums of
    three numbers are then products, which scores of tensor attention consist of.

    Args:
        vocab_size: V, number of tokens and of scores.
        dim: C, even.
        depth: number of layers.
        num_heads: of the attention.
        hidden_dim: of the channel mixers.
        scale: of the scores of the attention; num_heads / dim by default.
        context: most tokens that it reads, each with a learned position.

    Shapes: tokens int64 (batch, tokens) -> scores (batch, tokens, vocab_size).

    Deviates: the papers have no trained network; embedding, positions and channel mixer are ours.

    Reference: arXiv:2310.04064; arXiv:2306.02896 for Match3 and the layer.
    """

    def __init__(
        self,
        vocab_size: int = 13,
        dim: int = 32,
        depth: int = 1,
        num_heads: int = 4,
        hidden_dim: int = 64,
        *,
        scale: float | None = None,
        context: int = 9,
    ) -> None:
        check_heads(dim, num_heads)
        check_positive(depth=depth, hidden_dim=hidden_dim)
        if dim % 2:
            raise UsageError(f"dim is {dim}; it must be even, because the embedding is pairs of a cosine and a sine.")
        blocks = [
            DecoderBlock(dim, TensorAttention(dim, num_heads, scale=scale, causal=True), hidden_dim)
            for _ in range(depth)
        ]
        super().__init__(vocab_size, dim, context, blocks, nn.LayerNorm(dim))
        self.longest = context
        self.positions = nn.Parameter(SPREAD * torch.randn(context, dim))
        angles = 2 * math.pi / vocab_size * torch.arange(vocab_size)[:, None] * torch.arange(1, dim // 2 + 1)
        with torch.no_grad():
            self.embedding.weight.copy_(torch.cat((angles.cos(), angles.sin()), 1))

    def embed(self, tokens: Tensor, position: int = 0) -> Tensor:
        return super().embed(tokens, position) + self.positions[position : position + tokens.shape[1]]

    def no_weight_decay(self) -> set[str]:
        return {"positions"}


register_model(
    "tensor_attention_tiny",
    TensorTransformer,
    "One layer of 32 that learns Match3, whether three numbers sum to 0, in minutes on a CPU.",
    source="arXiv:2310.04064",
    parameters=11_648,
    tiny={"dim": 12, "depth": 2, "num_heads": 3, "hidden_dim": 20, "context": 16, "vocab_size": 31},
    family="tensor_attention",
)
