"""A decoder with softmax attention: what other mixers of tokens are compared with, at an equal number of parameters.

Source: arXiv:1706.03762 (attention), arXiv:2104.09864 (rotary positions); norm and channel mixer are those of TNL.
Cost: 2 (4 C^2 + 3 C G) FLOPs a token and layer, and 4 N C for attention to N tokens. Read token by token, the keys and
values of all tokens are kept: 2 N C numbers a layer.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from mereo.core import Causal, Coupling
from mereo.core.inputs import check_streamed
from mereo.core.kernels.attention import attend
from mereo.errors import UsageError, check_positive
from mereo.layers import SimpleGLU, SimpleRMSNorm
from mereo.models.registry import register_model
from mereo.models.sequence_model import SequenceModel

BASE = 10_000.0
"""Wavelengths of rotary positions grow up to 2 pi times this."""


def rotate(x: Tensor, position: int = 0) -> Tensor:
    """Rotary positions: turn pairs of channels (c, c + D / 2) of token t by t BASE^(-2 c / D).

    Args:
        position: number of the first token.

    Shapes: (batch, heads, tokens, D), D even -> the same.
    """
    half = x.shape[-1] // 2
    rates = BASE ** (-torch.arange(half, dtype=torch.float32, device=x.device) / half)
    angles = torch.arange(position, position + x.shape[2], device=x.device).unsqueeze(1) * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)


class KeyValueState(NamedTuple):
    """The keys and values of all tokens read so far: (batch, heads, tokens, dim) each."""

    keys: Tensor
    values: Tensor


class TransformerBlock(nn.Module):
    """Causal softmax attention with rotary positions, and gated linear units, each behind a norm.

    Args:
        dim: of the tokens.
        num_heads: divides `dim`, into an even number of channels each.
        glu_dim: hidden size of the channel mixer.

    Shapes: (batch, tokens, dim), mask bool (batch, tokens) or None -> (batch, tokens, dim).
    """

    def __init__(self, dim: int, num_heads: int, glu_dim: int) -> None:
        super().__init__()
        if dim % (2 * num_heads):
            raise UsageError(f"dim is {dim} and num_heads {num_heads}; dim must be a multiple of 2 num_heads.")
        self.num_heads = num_heads
        self.norm1, self.norm2 = SimpleRMSNorm(), SimpleRMSNorm()
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        for layer in (self.qkv, self.proj):
            nn.init.normal_(layer.weight, std=0.02)
        self.coupling = Coupling("senders", topology=Causal())
        self.channels = SimpleGLU(dim, glu_dim)

    def extend(
        self, x: Tensor, state: KeyValueState | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, KeyValueState]:
        """Tokens behind those that made `state`, and the keys and values of all of them."""
        samples = None if state is None else state.keys.shape[0]
        check_streamed(type(self).__name__, x, "(batch, tokens, dim)", samples)
        position = 0 if state is None else state.keys.shape[2]
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.num_heads, -1)).transpose(1, 3).unbind(2)
        q, k = rotate(q, position), rotate(k, position)
        if state is not None:
            k, v = torch.cat((state.keys, k), 2), torch.cat((state.values, v), 2)
        senders = None if mask is None else mask[:, None, None, :]
        mixed = attend(q, k, v, self.coupling, mask=senders)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.channels(self.norm2(x)), KeyValueState(k, v)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.extend(x, None, mask)[0]


class CausalTransformer(SequenceModel):
    """Predict the next token by softmax attention to the tokens before it.

    x_0 = sqrt(C) embedding,  y = x + attention(SRMSNorm(x)),  x' = y + SGLU(SRMSNorm(y)),  scores = W SRMSNorm(x_L)

    Args:
        vocab_size: number of tokens; 256 for bytes.
        dim: C, size of the tokens.
        depth: number of layers.
        num_heads: of the attention.
        glu_dim: G, hidden size of the channel mixer.
        context: tokens of the windows that it is trained on; it reads any number, in time that grows with its square.

    Shapes: tokens int64 (batch, tokens) -> scores (batch, tokens, vocab_size).

    Deviates: norm, channel mixer and positions are not those of the paper, so that it differs from TNL in the mixer of
    tokens only.

    Reference: arXiv:1706.03762, arXiv:2104.09864. Weights normal of 0.02.
    """

    def __init__(
        self,
        vocab_size: int = 256,
        dim: int = 64,
        depth: int = 4,
        num_heads: int = 4,
        glu_dim: int = 149,
        *,
        context: int = 256,
    ) -> None:
        check_positive(dim=dim, depth=depth, num_heads=num_heads, glu_dim=glu_dim)
        blocks = [TransformerBlock(dim, num_heads, glu_dim) for _ in range(depth)]
        super().__init__(vocab_size, dim, context, blocks, SimpleRMSNorm(), scale=dim**0.5)


register_model(
    "causal_transformer_tiny",
    CausalTransformer,
    "Softmax attention with as many parameters as tnl_tiny, to 0.2 %.",
    source="arXiv:1706.03762",
    parameters=212_736,
    tiny={"dim": 12, "depth": 2, "num_heads": 3, "glu_dim": 20, "context": 16, "vocab_size": 31},
)
register_model(
    "causal_transformer_small",
    CausalTransformer,
    "Softmax attention with as many parameters as tnl_small, to 0.01 %.",
    source="arXiv:1706.03762",
    parameters=2_973_696,
    dim=192,
    depth=6,
    num_heads=6,
    glu_dim=576,
    context=512,
)
