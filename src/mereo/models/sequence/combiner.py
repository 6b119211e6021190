"""A decoder whose tokens attend to all earlier ones by Combiner: a few directly, the rest by summaries of regions.

x_0 = sqrt(C) embedding + positions,  y = x + Combiner(LN(x)),  x' = y + FF(LN(y)),  scores = W LN(x_L)

Source: Ren, H. Dai, Z. Dai, Yang, Leskovec, Schuurmans, B. Dai 2021, arXiv:2107.05768.
Cost: 2 (4 C^2 + 2 C F) FLOPs a token and layer for the projections, and 4 C (s + N / s) for fixed blocks of s.
"""

from functools import partial

from mereo.models.registry import register_model
from mereo.models.sequence.causal_transformer import CausalTransformer

_register = partial(
    register_model,
    module=CausalTransformer,
    source="arXiv:2107.05768",
    family="combiner",
    mechanism="combiner",
    channels="gelu",
    sines=True,
    depth=2,
    size=16,
    hidden_dim=256,
    short={name: f"mechanism_args.{name}" for name in ("plan", "size", "pool")},
)

_register(
    "combiner_tiny",
    summary="Two layers of 64 for text as bytes, with fixed blocks, trained in minutes on a CPU.",
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
_register(
    "combiner_logsparse_tiny",
    summary="The same with regions of a binary tree.",
    parameters=132_352,
    plan="logsparse",
)
_register(
    "combiner_axial_tiny",
    summary="The same with rows whose keys are learned.",
    parameters=148_992,
    plan="axial_rowmajor",
)
_register(
    "combiner_fixed_base",
    summary="Twelve layers of 768 with blocks of 128, as in the released code, for text as bytes.",
    parameters=85_412_352,
    dim=768,
    depth=12,
    num_heads=12,
    size=128,
    hidden_dim=3072,
    context=2048,
)
_register(
    "combiner_fixed_enwik8",
    summary="As large as the Routing Transformer for enwik8, text as bytes, with blocks of 128.",
    parameters=126_453_760,
    dim=1024,
    depth=12,
    num_heads=8,
    size=128,
    hidden_dim=3072,
    context=12_288,
)

# Images of `_side` x `_side` pixels; the tokens are the bytes of their colours, row by row.
for _data, _side in (("cifar10", 32), ("imagenet64", 64)):
    _register(
        f"combiner_mixture_{_data}",
        summary=f"Six layers of 512 that predict the bytes of images of {_side} x {_side} pixels by rows and columns.",
        parameters=19_165_184,
        dim=512,
        depth=6,
        num_heads=8,
        plan="axial_mixture",
        size=3 * _side,
        hidden_dim=2048,
        context=3 * _side**2,
    )
