"""RCMHA in a decoder: causal attention with convolutions and relative scores, which may carry a memory over segments.

x_0 = sqrt(C) embedding,  y = x + RCMHA(LN(x), LN(memory)),  x' = y + FF(LN(y)),  scores = W LN(x_L) + b

Source: arXiv:2308.03429 and the released code, which trains segments of 2 characters with a memory of 32.
Cost: see `mereo.mechanisms.attention.RelativeConvolutionalAttention`; 4 C F FLOPs a token and layer for the channels.
Deviates: embedding and head start normal of 0.02, and the embedding is multiplied by sqrt(C), as in our other decoders.
"""

from functools import partial

import torch
from torch import Tensor

from mereo.errors import UsageError, check_count
from mereo.mechanisms.attention import RelativeConvolutionalAttention
from mereo.models.registry import register_model
from mereo.models.sequence.causal_transformer import CausalTransformer

Memory = tuple[Tensor, ...]
"""What each layer read of the tokens before a segment: (batch, past, dim) each."""


def read_segment(
    model: CausalTransformer, tokens: Tensor, memory: Memory | None = None, length: int = 32
) -> tuple[Tensor, Memory]:
    """Scores of a segment whose layers also attend to the memory, and the memory of the next segment.

    No gradient reaches earlier segments. Unlike `extend`, which keeps all keys and values and equals one pass, the
    memory has a fixed length, and convolutions of queries begin anew with each segment, as in the released code.

    Args:
        model: of `rcmha` blocks, without positions added to the embedding.
        memory: of the segment before; None for the first one.
        length: most tokens that the new memory holds.

    Shapes: tokens int64 (batch, tokens) -> (batch, tokens, vocab_size).

    Reference: arXiv:1901.02860, section 3.2.
    """
    check_count(length=length)
    if not all(isinstance(getattr(block, "mixer", None), RelativeConvolutionalAttention) for block in model.blocks):
        raise UsageError(f"model is a {type(model).__name__} without rcmha in its blocks, which read a memory.")
    if model.sines:
        raise UsageError("sines is True, and positions in a segment are not known; read with sines=False.")
    model.check_tokens(tokens)
    shapes = None if memory is None else [(*each.shape[::2], each.dim()) for each in memory]
    if shapes not in (None, [(len(tokens), model.num_features, 3)] * len(model.blocks)):
        raise UsageError("memory is of another network or batch; give what the same network returned, or None.")
    x, kept = model.embed(tokens), []
    for layer, block in enumerate(model.blocks):
        known = x if memory is None else torch.cat((memory[layer], x), 1)
        kept.append(known[:, max(0, known.shape[1] - length) :].detach())
        past = None if memory is None else block.norm1(memory[layer])  # type: ignore[operator]
        x = block.add(x, block.mixer(block.norm1(x), past))  # type: ignore[operator]
    return model.forward_head(model.norm(x)), tuple(kept)


_register = partial(
    register_model,
    module=CausalTransformer,
    source="arXiv:2308.03429",
    family="rcmha",
    mechanism="rcmha",
    channels="relu",
    head_bias=True,
    short={name: f"mechanism_args.{name}" for name in ("kernel", "reach")},
)

_register(
    "rcmha_tiny",
    summary="Four layers of 64 for text as bytes, each token attending to at most 256.",
    parameters=306_816,
    tiny={
        "dim": 12, "depth": 2, "num_heads": 3, "reach": 64, "hidden_dim": 20, "context": 16, "vocab_size": 31,
    },
    variants={
        "MHA": {"kernel": 0, "reach": 0, "sines": True}, "MDHA": {"reach": 0}, "RMHA": {"kernel": 0},
    },
    reach=256,
    hidden_dim=128,
)  # fmt: skip
_register(
    "rcmha_shakespeare",
    summary="The released network for the 65 characters of Tiny Shakespeare, each attending to at most 4096.",
    parameters=7_496_897,
    vocab_size=65,
    dim=128,
    depth=6,
    num_heads=8,
    reach=4096,
    hidden_dim=256,
    context=128,
)
