"""Sparsifiner in place of the attention of a trained vision transformer."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mereo.core.surgery import surgery
from mereo.errors import UsageError
from mereo.mechanisms.attention.hosted import heads_of, is_host, output_layer, replace_attention
from mereo.mechanisms.attention.sparse.sparsifiner import SparsifinerAttention


def _count_tokens(model: nn.Module) -> int:
    """Number of tokens of a vision transformer's blocks; UsageError if it does not state it."""
    positions = getattr(model, "pos_embed", None)
    patches = getattr(getattr(model, "patch_embed", None), "num_patches", None)
    if patches is not None:
        return int(patches) + _count_prefix(model)
    # After the patches, since DINOv2's networks state as num_tokens how many there are before these.
    if (own := getattr(model, "num_tokens", None)) is not None:
        return int(own)
    if isinstance(positions, Tensor) and positions.dim() == 3:
        return positions.shape[1]
    raise UsageError(f"model is a {type(model).__name__} that does not state how many tokens it has; give `tokens`.")


def _count_prefix(model: nn.Module) -> int:
    prefix = getattr(model, "num_prefix_tokens", None)
    if prefix is not None:
        return int(prefix)
    registers = int(getattr(model, "num_register_tokens", 0))
    return registers + (getattr(model, "cls_token", None) is not None if hasattr(model, "cls_token") else 1)


@surgery
def sparsifiner(
    model: nn.Module,
    keep: float = 0.25,
    *,
    tokens: int | None = None,
    prefix: int | None = None,
    layers: Sequence[int] | None = None,
    seed: int = 0,
    **arguments: Any,
) -> nn.Module:
    """A copy of a trained vision transformer, or of one attention layer, that attends only to predicted keys.

    Queries, keys, values and output keep their weights; the predictors are new, and learn from the dense model:

    teacher, student = mereo.watchable(vit), mereo.sparsifiner(vit, keep=0.25)
    set_phase(student, "reconstruction")
    mereo.distil(teacher, student, images, mereo.sparsifiner_matches(student), trained=["*.predictor.*"], epochs=5)
    set_phase(student, "sparse")
    mereo.distil(teacher, student, images, mereo.sparsifiner_matches(student), task="cross_entropy", epochs=45)

    Args:
        model: of mereo, timm, torchvision or transformers; it is not changed.
        keep: share of the keys that a query keeps.
        tokens: number of tokens with the class token; read from the model if it states it.
        prefix: number of tokens before the patches; read from the model, 1 for a layer.
        layers: numbers of the replaced layers; all by default.
        seed: of the new weights.
        arguments: further ones of `SparsifinerAttention`.

    Shapes: as for `model`.

    Raises:
        UsageError: for a model without attention that can be replaced, and one that does not state its tokens.

    Reference: arXiv:2303.13755.
    """
    if tokens is None and not is_host(model):
        tokens = _count_tokens(model)
    if tokens is None:
        raise UsageError("tokens is None for an attention layer; give the number of tokens with the class token.")
    count, first = tokens, _count_prefix(model) if prefix is None else prefix

    def make(host: nn.Module) -> nn.Module:
        like, heads = next(host.parameters()), heads_of(host)
        dim = int(output_layer(host).in_features)  # type: ignore[arg-type]
        layer = SparsifinerAttention(dim, heads, count, keep=keep, prefix=first, host=host, **arguments)
        return layer.to(like.device, like.dtype)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return replace_attention(model, make, layers)
