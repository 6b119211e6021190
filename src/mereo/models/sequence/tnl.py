"""TransNormerLLM (TNL): a decoder whose tokens are mixed by gated linear attention with decay.

x_0 = sqrt(C) embedding,  y = x + GLA(SRMSNorm(x)),  x' = y + SGLU(SRMSNorm(y)),  scores = W SRMSNorm(x_L)

Queries and keys of the first layer are turned by position, as in the paper. The decay is from the released code, see
`mereo.mechanisms.scan.LightningAttention`.

Source: arXiv:2307.14995 (norm, gates, positions, decay by layer) and arXiv:2405.17381 (lightning attention).
Cost: 2 (5 C^2 + 3 C G) FLOPs a token and layer, and 4 C C / H for the states of H heads: the same for each token at
every length. Read token by token, a sequence of any length needs C C / H numbers a layer.
"""

from functools import partial

from mereo.models.registry import register_model
from mereo.models.sequence.causal_transformer import CausalTransformer

_register = partial(
    register_model,
    module=CausalTransformer,
    source="arXiv:2405.17381",
    family="tnl",
    mechanism="lightning",
    first_layers=1,
    first_args={"positions": True},
    short={
        "glu_dim": "hidden_dim", "lrpe_layers": "first_layers", "decay": "mechanism_args.decay",
        "block": "mechanism_args.block",
    },
)  # fmt: skip

_register(
    "tnl_tiny",
    summary="TransNormerLLM: four layers of 64 for text as bytes, trained in minutes on a CPU.",
    parameters=213_056,
    recipe="language_demo",
    tiny={"dim": 12, "depth": 3, "num_heads": 3, "hidden_dim": 20, "block": 4, "context": 16, "vocab_size": 31},
    variants={"paper's decay": {"decay": "paper"}, "positions everywhere": {"first_layers": 3, "tied": True}},
    hidden_dim=128,
    block=32,
)
_register(
    "tnl_small",
    summary="TransNormerLLM: six layers of 192 for text as bytes.",
    parameters=2_973_888,
    dim=192,
    depth=6,
    num_heads=6,
    hidden_dim=512,
    context=512,
)
_register(
    "tnl_enwik8",
    summary="TransNormerLLM: layers and channels of the Routing Transformer for enwik8, text as bytes.",
    parameters=167_248_896,
    dim=1024,
    depth=12,
    num_heads=8,
    hidden_dim=2816,
    context=12_288,
)
_register(
    "tnl_wikitext103",
    summary="TransNormerLLM: six layers of 512 for WikiText-103, 45.40 million parameters (paper 45.45).",
    parameters=45_400_576,
    vocab_size=50_272,
    dim=512,
    depth=6,
    num_heads=8,
    hidden_dim=1280,
    tied=True,
    context=512,
)
_register(
    "tnl_385m",
    summary="TransNormerLLM: the network of 385 million parameters, counted without its head and with 50,272 tokens.",
    parameters=464_520_192,
    vocab_size=64_000,
    dim=1024,
    depth=24,
    num_heads=8,
    hidden_dim=2816,
    context=2048,
)
_register(
    "tnl_1b",
    summary="TransNormerLLM: the network of one billion parameters.",
    parameters=1_151_338_496,
    vocab_size=64_000,
    dim=2048,
    depth=16,
    num_heads=16,
    hidden_dim=5632,
    context=2048,
)
_register(
    "tnl_7b",
    summary="TransNormerLLM: seven billion parameters, with the hidden size that gives the published number.",
    parameters=6_815_748_096,
    vocab_size=64_000,
    dim=4096,
    depth=30,
    num_heads=32,
    hidden_dim=10_240,
    context=2048,
)
