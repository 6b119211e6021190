"""Routing Transformer: a decoder in which some heads attend nearby and others inside clusters of queries.

Source: Roy, Saffar, Vaswani, Grangier 2021, arXiv:2003.05997, and the hyper-parameters of the released code.
Cost: for N tokens, k clusters of w and blocks of b, 2 N (k + 2 w) D FLOPs for a routed head of D and 8 N b D for a
    local one, in training. In evaluation and token by token, clusters hold the tokens so far: see `RoutingAttention`.
"""

from torch import Tensor, nn

from mereo.errors import UsageError, check_positive, check_probability
from mereo.layers import DecoderBlock
from mereo.mechanisms.attention.sparse.routing_attention import RoutingAttention, RoutingState
from mereo.models.registry import register_model
from mereo.models.sequence_model import SequenceModel


class RoutingBlock(DecoderBlock):
    """Routing attention and a feed-forward network.

    Shapes: (batch, tokens, dim), mask bool (batch, tokens) or None -> (batch, tokens, dim).
    """

    mixer: RoutingAttention

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.add(x, self.mixer(self.norm1(x), mask))

    def extend(self, x: Tensor, state: RoutingState | None = None) -> tuple[Tensor, RoutingState]:
        """Tokens behind those that made `state`, and the state behind them."""
        mixed, state = self.mixer.extend(self.norm1(x), state)
        return self.add(x, mixed), state


class RoutingTransformer(SequenceModel):
    """Predict the next token by local heads and heads that attend inside clusters.

    x_0 = sqrt(C) embedding,  y = x + RA(LN(x)),  x' = y + FF(LN(y)),  scores = W LN(x_L)

    Args:
        vocab_size: number of tokens; 256 for bytes.
        dim: C, size of the tokens; a multiple of the number of heads.
        depth: number of layers.
        heads_local, heads_routed: of a layer with clusters.
        local_layers: how many layers, counted from the first, have local heads only, as many as the others have heads.
        clusters: of each routed head.
        window: members of a cluster.
        block: tokens of a local block; a token sees its own and the one before.
        hidden_dim: of the feed-forward networks.
        strict: "evaluation" makes the clusters of a token from those up to it where the network does not train,
            "always" in training as well; "never" is as the released code: scores then depend on later tokens, by which
            tokens are members.
        dropout: of couplings, hidden layers and residual branches.
        decay, beta: of the centroids and their loss, see `RoutingAttention`.
        tied: whether the head is the embedding, transposed.
        context: tokens of the windows that it is trained on; it reads any number.

    Shapes: tokens int64 (batch, tokens) -> scores (batch, tokens, vocab_size).

    Deviates: in evaluation, clusters keep to the past by default, so that bits per byte are those of a predictor.

    Reference: arXiv:2003.05997, sections 4 and 5.
    """

    def __init__(
        self,
        vocab_size: int = 256,
        dim: int = 64,
        depth: int = 2,
        heads_local: int = 2,
        heads_routed: int = 2,
        *,
        local_layers: int = 0,
        clusters: int = 8,
        window: int = 32,
        block: int = 32,
        hidden_dim: int = 256,
        strict: str = "evaluation",
        dropout: float = 0.0,
        decay: float = 0.999,
        beta: float = 1e-4,
        tied: bool = False,
        context: int = 256,
    ) -> None:
        check_positive(dim=dim, depth=depth, hidden_dim=hidden_dim)
        check_probability(dropout=dropout)
        if not 0 <= local_layers <= depth:
            raise UsageError(f"local_layers is {local_layers}; it must be from 0 to depth, which is {depth}.")

        def mixer(layer: int) -> RoutingAttention:
            routed = heads_routed if layer >= local_layers else 0
            return RoutingAttention(
                dim, heads_local + heads_routed - routed, routed, clusters=clusters, window=window, block=block,
                causal=True, strict=strict, decay=decay, beta=beta, attn_drop=dropout,
            )  # fmt: skip

        blocks = [RoutingBlock(dim, mixer(i), hidden_dim, dropout, nn.ReLU) for i in range(depth)]
        super().__init__(vocab_size, dim, context, blocks, nn.LayerNorm(dim), tied=tied, scale=dim**0.5)
        # Who is in a cluster depends on all tokens where clusters do not keep to the past.
        self.causal = strict != "never" or local_layers == depth or heads_routed == 0  # type: ignore[misc]


register_model(
    "routing_transformer_tiny",
    RoutingTransformer,
    "Two layers of 64 for text as bytes, trained in minutes on a CPU.",
    source="arXiv:2003.05997",
    parameters=128_512,
    tiny={
        "dim": 12, "depth": 2, "heads_local": 1, "heads_routed": 2, "clusters": 2, "window": 8, "block": 4,
        "hidden_dim": 20, "context": 16, "vocab_size": 31,
    },
    variants={"routed last": {"local_layers": 1}, "always strict": {"strict": "always", "tied": True}},
)  # fmt: skip
register_model(
    "routing_transformer_small",
    RoutingTransformer,
    "Six layers of 256 for text as bytes.",
    source="arXiv:2003.05997",
    parameters=4_670_464,
    dim=256,
    depth=6,
    heads_local=4,
    heads_routed=4,
    clusters=16,
    window=64,
    block=64,
    hidden_dim=1024,
    context=1024,
)
register_model(
    "routing_transformer_wikitext103",
    RoutingTransformer,
    "The network for WikiText-103 of the released code, with the words of that text as tokens.",
    source="arXiv:2003.05997",
    parameters=413_795_328,
    vocab_size=267_735,
    dim=1024,
    depth=14,
    heads_local=8,
    heads_routed=8,
    clusters=8,
    window=512,
    block=256,
    hidden_dim=3072,
    dropout=0.4,
    tied=True,
    context=4096,
)
register_model(
    "routing_transformer_wikitext103_short",
    RoutingTransformer,
    "The network for WikiText-103 with windows of 1024 words.",
    source="arXiv:2003.05997",
    parameters=473_637_888,
    vocab_size=267_735,
    dim=1024,
    depth=20,
    heads_local=8,
    heads_routed=8,
    clusters=2,
    window=512,
    block=256,
    hidden_dim=3072,
    dropout=0.4,
    tied=True,
    context=1024,
)
register_model(
    "routing_transformer_enwik8",
    RoutingTransformer,
    "The network for enwik8, text as bytes, with the hidden size of the one for WikiText-103.",
    source="arXiv:2003.05997",
    parameters=120_186_880,
    dim=1024,
    depth=12,
    heads_local=4,
    heads_routed=4,
    clusters=48,
    window=256,
    block=256,
    hidden_dim=3072,
    context=12_288,
)
register_model(
    "routing_transformer_pg19",
    RoutingTransformer,
    "The network for the books of PG-19, with 98,000 pieces of words as tokens; only its last layer has clusters.",
    source="arXiv:2003.05997",
    parameters=380_966_896,
    vocab_size=98_000,
    dim=1032,
    depth=22,
    heads_local=6,
    heads_routed=2,
    local_layers=21,
    clusters=16,
    window=512,
    block=512,
    hidden_dim=4096,
    tied=True,
    context=8192,
)
