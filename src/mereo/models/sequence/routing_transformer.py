"""Routing Transformer: a decoder in which some heads attend nearby and others inside clusters of queries.

x_0 = sqrt(C) embedding,  y = x + RA(LN(x)),  x' = y + FF(LN(y)),  scores = W LN(x_L)

In evaluation, clusters keep to the past by default (`strict`), so that bits per byte measure prediction; in the
released code scores depend on later tokens, which change the members of clusters.

Source: Roy, Saffar, Vaswani, Grangier 2021, arXiv:2003.05997, and the hyper-parameters of the released code.
Cost: for N tokens, k clusters of w and blocks of b, 2 N (k + 2 w) D FLOPs for a routed head of D and 8 N b D for a
    local one, in training. In evaluation and token by token, clusters hold the tokens so far: see `RoutingAttention`.
"""

from functools import partial

from mereo.models.registry import register_model
from mereo.models.sequence.causal_transformer import CausalTransformer

_OF_MECHANISM = ("heads_local", "heads_routed", "clusters", "window", "block", "strict", "decay", "beta")
_register = partial(
    register_model,
    module=CausalTransformer,
    source="arXiv:2003.05997",
    family="routing_transformer",
    mechanism="routing_attention",
    first_args={"routes": False},
    channels="relu",
    depth=2,
    heads_local=2,
    heads_routed=2,
    clusters=8,
    window=32,
    hidden_dim=256,
    short={"local_layers": "first_layers", **{name: f"mechanism_args.{name}" for name in _OF_MECHANISM}},
)

_register(
    "routing_transformer_tiny",
    summary="Two layers of 64 for text as bytes, trained in minutes on a CPU.",
    parameters=128_512,
    tiny={
        "dim": 12, "depth": 2, "heads_local": 1, "heads_routed": 2, "clusters": 2, "window": 8, "block": 4,
        "hidden_dim": 20, "context": 16, "vocab_size": 31,
    },
    variants={"routed last": {"local_layers": 1}, "always strict": {"strict": "always", "tied": True}},
)  # fmt: skip
_register(
    "routing_transformer_small",
    summary="Six layers of 256 for text as bytes.",
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
_register(
    "routing_transformer_wikitext103",
    summary="The network for WikiText-103 of the released code, with the words of that text as tokens.",
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
_register(
    "routing_transformer_wikitext103_short",
    summary="The network for WikiText-103 with windows of 1024 words.",
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
_register(
    "routing_transformer_enwik8",
    summary="The network for enwik8, text as bytes, with the hidden size of the one for WikiText-103.",
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
_register(
    "routing_transformer_pg19",
    summary="The network for the books of PG-19, with 98,000 pieces of words as tokens, clustered in the last layer.",
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
