"""A decoder whose tokens attend to all earlier ones by Combiner: a few directly, the rest by summaries of regions.

Source: Ren, H. Dai, Z. Dai, Yang, Leskovec, Schuurmans, B. Dai 2021, arXiv:2107.05768.
Cost: 2 (4 C^2 + 2 C F) FLOPs a token and layer for the projections, and 4 C (s + N / s) for fixed blocks of s.
"""

import torch
from torch import Tensor, nn

from mereo.errors import UsageError, check_positive, check_probability
from mereo.layers import DecoderBlock
from mereo.mechanisms.attention.sparse.combiner import CombinerAttention
from mereo.models.registry import register_model
from mereo.models.sequence_model import SequenceModel


class CombinerBlock(DecoderBlock):
    """Combiner and a feed-forward network. Padding follows the tokens and changes none of them."""


class CombinerTransformer(SequenceModel):
    """Predict the next token by attention to all earlier tokens, most of them summarised.

    x_0 = sqrt(C) embedding + positions,  y = x + Combiner(LN(x)),  x' = y + FF(LN(y)),  scores = W LN(x_L)

    Positions are sines and cosines of wavelengths from 2 pi to 10000 * 2 pi.

    Args:
        vocab_size: number of tokens; 256 for bytes.
        dim: C, size of the tokens; an even number.
        depth: number of layers.
        num_heads: divides `dim`.
        plan: "fixed", "logsparse", "axial_vertical", "axial_horizontal", "axial_rowmajor" or "axial_mixture".
        size: tokens of a block, or of a row; of no use to the plan "logsparse".
        pool: how the queries and keys of a region become one, "max" or "mean".
        hidden_dim: of the feed-forward networks.
        dropout: of couplings, hidden layers and residual branches.
        tied: whether the head is the embedding, transposed.
        context: tokens of the windows that it is trained on; it reads any number.

    Shapes: tokens int64 (batch, tokens) -> scores (batch, tokens, vocab_size).

    Reference: arXiv:2107.05768, section 5.
    """

    def __init__(
        self,
        vocab_size: int = 256,
        dim: int = 64,
        depth: int = 2,
        num_heads: int = 4,
        *,
        plan: str = "fixed",
        size: int = 16,
        pool: str = "max",
        hidden_dim: int = 256,
        dropout: float = 0.0,
        tied: bool = False,
        context: int = 256,
    ) -> None:
        check_positive(dim=dim, depth=depth, size=size, hidden_dim=hidden_dim)
        check_probability(dropout=dropout)
        if dim % 2:
            raise UsageError(f"dim is {dim}; it must be even, because positions are pairs of a sine and a cosine.")
        if plan == "learned":
            raise UsageError("plan is 'learned', which is for `CombinerAttention`: it is given regions; give another.")
        length = None if plan == "logsparse" else size
        blocks = [
            CombinerBlock(
                dim,
                CombinerAttention(dim, num_heads, plan=plan, size=length, causal=True, pool=pool, attn_drop=dropout),
                hidden_dim,
                dropout,
            )
            for _ in range(depth)
        ]
        super().__init__(vocab_size, dim, context, blocks, nn.LayerNorm(dim), tied=tied, scale=dim**0.5)

    def embed(self, tokens: Tensor, position: int = 0) -> Tensor:
        embedded = super().embed(tokens, position)
        half = self.num_features // 2
        at = torch.arange(position, position + tokens.shape[1], device=tokens.device, dtype=torch.float32)
        rates = 10000 ** (-torch.arange(half, device=tokens.device, dtype=torch.float32) / half)
        angles = at.unsqueeze(1) * rates
        return embedded + torch.cat((angles.sin(), angles.cos()), -1).to(embedded.dtype)


register_model(
    "combiner_tiny",
    CombinerTransformer,
    "Two layers of 64 for text as bytes, with fixed blocks, trained in minutes on a CPU.",
    source="arXiv:2107.05768",
    parameters=132_352,
    tiny={
        "dim": 12, "depth": 2, "num_heads": 3, "size": 4, "hidden_dim": 20, "context": 16, "vocab_size": 31,
    },
    variants={
        "binary": {"plan": "logsparse"},
        "axial": {"plan": "axial_mixture", "tied": True},
        "learned keys": {"plan": "axial_rowmajor"},
    },
)  # fmt: skip
register_model(
    "combiner_logsparse_tiny",
    CombinerTransformer,
    "The same with regions of a binary tree.",
    source="arXiv:2107.05768",
    parameters=132_352,
    plan="logsparse",
)
register_model(
    "combiner_axial_tiny",
    CombinerTransformer,
    "The same with rows whose keys are learned.",
    source="arXiv:2107.05768",
    parameters=148_992,
    plan="axial_rowmajor",
)
register_model(
    "combiner_fixed_base",
    CombinerTransformer,
    "Twelve layers of 768 with blocks of 128, as in the released code, for text as bytes.",
    source="arXiv:2107.05768",
    parameters=85_412_352,
    dim=768,
    depth=12,
    num_heads=12,
    size=128,
    hidden_dim=3072,
    context=2048,
)
register_model(
    "combiner_fixed_enwik8",
    CombinerTransformer,
    "As large as the Routing Transformer for enwik8, text as bytes, with blocks of 128.",
    source="arXiv:2107.05768",
    parameters=126_453_760,
    dim=1024,
    depth=12,
    num_heads=8,
    size=128,
    hidden_dim=3072,
    context=12_288,
)

# Rows of an image of so many pixels across, whose tokens are the bytes of its colours, row by row.
for _data, _side in (("cifar10", 32), ("imagenet64", 64)):
    register_model(
        f"combiner_mixture_{_data}",
        CombinerTransformer,
        f"Six layers of 512 that predict the bytes of images of {_side} x {_side} pixels by rows and columns.",
        source="arXiv:2107.05768",
        parameters=19_165_184,
        dim=512,
        depth=6,
        num_heads=8,
        plan="axial_mixture",
        size=3 * _side,
        hidden_dim=2048,
        context=3 * _side**2,
    )
