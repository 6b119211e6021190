"""TransNormerLLM (TNL): a decoder whose tokens are mixed by gated linear attention with decay.

Source: arXiv:2307.14995 (norm, gates, positions, decay by layer) and arXiv:2405.17381 (lightning attention).
Cost: 2 (5 C^2 + 3 C G) FLOPs a token and layer, and 4 C C / H for the states of H heads: the same for each token at
every length. Read token by token, a sequence of any length needs C C / H numbers a layer.
"""

from torch import Tensor, nn

from mereo.errors import UsageError, check_positive
from mereo.layers import SimpleGLU, SimpleRMSNorm
from mereo.mechanisms.scan import LightningAttention, ScanState
from mereo.models.registry import register_model
from mereo.models.sequence_model import SequenceModel


class TNLBlock(nn.Module):
    """A token mixer and a channel mixer, each behind a norm and added to what it reads.

    y = x + GLA(SRMSNorm(x)),   out = y + SGLU(SRMSNorm(y))

    Args:
        mixer: gated linear attention, see `LightningAttention`.
        channels: see `SimpleGLU`.

    Shapes: (batch, tokens, dim), mask bool (batch, tokens) or None -> (batch, tokens, dim).
    """

    def __init__(self, mixer: LightningAttention, channels: SimpleGLU) -> None:
        super().__init__()
        self.norm1, self.mixer = SimpleRMSNorm(), mixer
        self.norm2, self.channels = SimpleRMSNorm(), channels

    def extend(self, x: Tensor, state: ScanState | None = None, mask: Tensor | None = None) -> tuple[Tensor, ScanState]:
        """Tokens behind those that made `state`, and the state behind them."""
        mixed, state = self.mixer.extend(self.norm1(x), state, mask)
        x = x + mixed
        return x + self.channels(self.norm2(x)), state

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.extend(x, None, mask)[0]


class TNL(SequenceModel):
    """Predict the next token by gated linear attention with decay.

    x_0 = sqrt(C) embedding,  y = x + GLA(SRMSNorm(x)),  x' = y + SGLU(SRMSNorm(y)),  scores = W SRMSNorm(x_L)

    Args:
        vocab_size: number of tokens; 256 for bytes.
        dim: C, size of the tokens.
        depth: number of layers.
        num_heads: of the linear attention; divides `dim`.
        glu_dim: G, hidden size of the channel mixer.
        lrpe_layers: how many layers, counted from the first, turn queries and keys by position; one in the paper.
        decay: how fast the heads forget: "alibi", "paper" or "none", see `mereo.mechanisms.scan.decay_slopes`.
        block: tokens that linear attention multiplies as pairs.
        tied: scores by the embeddings, with no weights of their own.
        context: tokens of the windows that it is trained on; it reads any number.

    Shapes: tokens int64 (batch, tokens) -> scores (batch, tokens, vocab_size).

    `step` takes a token and a state whose size does not depend on how many tokens were read.

    Deviates: the decay of the released code, see `mereo.mechanisms.scan.LightningAttention`.

    Reference: arXiv:2307.14995, section 3; arXiv:2405.17381, section 3. Weights normal of 0.02.
    """

    def __init__(
        self,
        vocab_size: int = 256,
        dim: int = 64,
        depth: int = 4,
        num_heads: int = 4,
        glu_dim: int = 128,
        *,
        lrpe_layers: int = 1,
        decay: str = "alibi",
        block: int = 64,
        tied: bool = False,
        context: int = 256,
    ) -> None:
        check_positive(dim=dim, depth=depth, num_heads=num_heads, glu_dim=glu_dim)
        if not 0 <= lrpe_layers <= depth:
            raise UsageError(f"lrpe_layers is {lrpe_layers}; it must be from 0 to depth, which is {depth}.")
        blocks = [
            TNLBlock(
                LightningAttention(
                    dim, num_heads, decay=decay, layer=i, num_layers=depth, positions=i < lrpe_layers, block=block
                ),
                SimpleGLU(dim, glu_dim),
            )
            for i in range(depth)
        ]
        super().__init__(vocab_size, dim, context, blocks, SimpleRMSNorm(), tied=tied, scale=dim**0.5)


register_model(
    "tnl_tiny",
    TNL,
    "TransNormerLLM: four layers of 64 for text as bytes, trained in minutes on a CPU.",
    source="arXiv:2405.17381",
    parameters=213_056,
    recipe="language_demo",
    tiny={"dim": 12, "depth": 3, "num_heads": 3, "glu_dim": 20, "block": 4, "context": 16, "vocab_size": 31},
    variants={"paper's decay": {"decay": "paper"}, "positions everywhere": {"lrpe_layers": 3, "tied": True}},
    block=32,
)
register_model(
    "tnl_small",
    TNL,
    "TransNormerLLM: six layers of 192 for text as bytes.",
    source="arXiv:2405.17381",
    parameters=2_973_888,
    dim=192,
    depth=6,
    num_heads=6,
    glu_dim=512,
    context=512,
)
register_model(
    "tnl_enwik8",
    TNL,
    "TransNormerLLM: as many layers and channels as the Routing Transformer for enwik8, text as bytes.",
    source="arXiv:2405.17381",
    parameters=167_248_896,
    dim=1024,
    depth=12,
    num_heads=8,
    glu_dim=2816,
    context=12_288,
)
register_model(
    "tnl_wikitext103",
    TNL,
    "TransNormerLLM: six layers of 512 for WikiText-103 in 50,272 word pieces, 45.40 million parameters (paper 45.45).",
    source="arXiv:2405.17381",
    parameters=45_400_576,
    vocab_size=50_272,
    dim=512,
    depth=6,
    num_heads=8,
    glu_dim=1280,
    tied=True,
    context=512,
)
register_model(
    "tnl_385m",
    TNL,
    "TransNormerLLM: the published network of 385 million parameters, counted without its head and with 50,272 tokens.",
    source="arXiv:2405.17381",
    parameters=464_520_192,
    vocab_size=64_000,
    dim=1024,
    depth=24,
    num_heads=8,
    glu_dim=2816,
    context=2048,
)
register_model(
    "tnl_1b",
    TNL,
    "TransNormerLLM: the network of one billion parameters.",
    source="arXiv:2405.17381",
    parameters=1_151_338_496,
    vocab_size=64_000,
    dim=2048,
    depth=16,
    num_heads=16,
    glu_dim=5632,
    context=2048,
)
register_model(
    "tnl_7b",
    TNL,
    "TransNormerLLM: the network of seven billion parameters, with the hidden size that gives the published number.",
    source="arXiv:2405.17381",
    parameters=6_815_748_096,
    vocab_size=64_000,
    dim=4096,
    depth=30,
    num_heads=32,
    glu_dim=10_240,
    context=2048,
)
