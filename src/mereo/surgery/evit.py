"""EViT for an existing vision transformer: a few layers drop the patches that the class token attends to least.

Source: arXiv:2202.07800, section 3; the weights are the network's own.
"""

import math
from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import nn

from mereo.core.modes import modes_kept
from mereo.core.surgery import restate_surgery, surgery
from mereo.errors import UsageError, check_fraction
from mereo.mechanisms.attention.dense import MultiHeadAttention
from mereo.mechanisms.attention.hosted import takes_tokens_only
from mereo.mechanisms.select.evit import ReducingBlock, exchange


def blocks_of(model: nn.Module) -> nn.ModuleList | nn.Sequential:
    """The transformer's blocks: the longest list of modules that all have attention and a feed-forward layer."""
    parts = ("norm1", "attn", "norm2", "mlp")
    lists = [
        m
        for m in model.modules()
        if isinstance(m, nn.ModuleList | nn.Sequential) and len(m) and all(hasattr(b, p) for b in m for p in parts)
    ]
    if not lists:
        raise UsageError(
            f"model is a {type(model).__name__} without blocks of {', '.join(parts)}; give a vision transformer, of"
            " mereo or timm."
        )
    return max(lists, key=len)


def prefix_of(model: nn.Module) -> int:
    """Number of tokens before the patches; UsageError without a class token."""
    prefix = getattr(model, "num_prefix_tokens", None)
    prefix = int(getattr(model, "cls_token", None) is not None) if prefix is None else int(prefix)
    if prefix < 1 or (hasattr(model, "cls_token") and model.cls_token is None):
        raise UsageError(
            f"model is a {type(model).__name__} without a class token, whose attention chooses patches; give a"
            " transformer that has one."
        )
    return prefix


@torch.no_grad()
def check_block(block: nn.Module, prefix: int, number: int) -> None:
    """UsageError unless a block computes x + attn(norm1(x)) and then x + mlp(norm2(x)), tried on random tokens."""
    like = next(block.parameters())
    if like.is_meta:
        return
    generator = torch.Generator().manual_seed(0)
    try:
        with modes_kept(block):
            block.eval()
            read = block.attn.query if isinstance(block.attn, MultiHeadAttention) else block.attn.qkv  # type: ignore[union-attr]
            x = torch.randn(2, prefix + 5, read.in_features, generator=generator).to(like)  # type: ignore[union-attr,arg-type]
            ours = ReducingBlock(block, prefix, 1.0).eval()
            agrees = takes_tokens_only(block) and torch.equal(ours(x), block(x))
            out, q, k = exchange(block.attn, x)  # type: ignore[arg-type]
            expected = block.attn(x)  # type: ignore[operator]
            agrees = agrees and torch.allclose(out, expected, rtol=1e-2, atol=1e-2 * float(expected.abs().max()))
            agrees = agrees and q.shape == k.shape
    except (AttributeError, RuntimeError, TypeError, ValueError):
        agrees = False
    if not agrees:
        raise UsageError(
            f"block {number} is a {type(block).__name__} that computes something else than x + attn(norm1(x)) and then"
            " x + mlp(norm2(x)) with attention over all tokens; such blocks are needed."
        )


def _per_layer(name: str, given: float | Sequence[float], layers: Sequence[int]) -> list[float]:
    values = list(given) if isinstance(given, Sequence) else [given] * len(layers)
    if len(values) != len(layers):
        raise UsageError(f"{name} is {given!r} for {len(layers)} layers; give one value, or one for each layer.")
    return values


def _chosen(layers: Sequence[int] | None, depth: int) -> list[int]:
    """The reducing layers: by default at a quarter, a half and three quarters."""
    chosen = sorted({depth // 4, depth // 2, 3 * depth // 4}) if layers is None else list(layers)
    if not chosen or len(set(chosen)) < len(chosen) or not all(0 <= layer < depth for layer in chosen):
        raise UsageError(
            f"layers is {layers!r}; give different numbers from 0 to {depth - 1}, the blocks of the model."
        )
    return chosen


def reduce_blocks(
    blocks: nn.ModuleList | nn.Sequential,
    prefix: int,
    keep_rate: float | Sequence[float],
    layers: Sequence[int] | None = None,
    *,
    tokens: int | Sequence[int] | None = None,
    fuse: bool = True,
    normalize: bool = False,
) -> None:
    """Let some blocks of a transformer drop patches, in place; see `evit` for the arguments."""
    chosen = _chosen(layers, len(blocks))
    rates = _per_layer("keep_rate", keep_rate, chosen)
    numbers = [None] * len(chosen) if tokens is None else _per_layer("tokens", tokens, chosen)
    for rate in rates:
        check_fraction(keep_rate=rate)
    for number in numbers:
        if number is not None and number < 1:
            raise UsageError(f"tokens is {tokens!r}; at least 1 patch must stay.")
    for layer, rate, number in zip(chosen, rates, numbers, strict=True):
        count = None if number is None else int(number)
        blocks[layer] = ReducingBlock(blocks[layer], prefix, rate, tokens=count, fuse=fuse, normalize=normalize)


@surgery
def evit(
    model: nn.Module,
    keep_rate: float | Sequence[float] = 0.7,
    *,
    layers: Sequence[int] | None = None,
    tokens: int | Sequence[int] | None = None,
    fuse: bool = True,
    normalize: bool = False,
) -> nn.Module:
    """A copy of a vision transformer that drops the patch tokens its class token attends to least, in a few layers.

    z = [class, the ceil(r N) patches with the largest class attention a, sum of a_i y_i over the others]

    Args:
        model: of mereo or timm, with a class token and blocks of `norm1`, `attn`, `norm2`, `mlp`. It is not changed;
            the copy has the same weights under the same names.
        keep_rate: share of patches that stay in each reducing layer, r; 1 leaves a layer as it is, bit for bit. One
            number, or one for each layer.
        layers: numbers of the reducing blocks; by default at a quarter, a half and three quarters.
        tokens: numbers of patches that stay, instead of rates.
        fuse: keep the patches that leave as one token, the last.
        normalize: divide that token by the sum of its weights; the paper does not.

    Shapes: as for `model`, with fewer tokens in its features. Recorded, by layer: int64 (batch, count), which patches
        of the layer's input stayed; `kept_patches` gives their places on the image.

    Raises:
        UsageError: for a model without a class token, and blocks that compute something else.

    Deviates: attention is read before dropout, and equal tokens are kept by their number.

    Reference: arXiv:2202.07800, eq. 4 to 6.
    """
    prefix, copy = prefix_of(model), deepcopy(model)
    blocks = blocks_of(copy)
    for layer in _chosen(layers, len(blocks)):
        check_block(blocks[layer], prefix, layer)
    reduce_blocks(blocks, prefix, keep_rate, layers, tokens=tokens, fuse=fuse, normalize=normalize)
    return copy


def set_keep_rate(model: nn.Module, keep_rate: float) -> None:
    """Give all reducing layers of a model another rate, as a schedule does in training."""
    check_fraction(keep_rate=keep_rate)
    for module in model.modules():
        if isinstance(module, ReducingBlock):
            module.keep_rate = keep_rate
    arguments = getattr(model, "config", {}).get("args", {})
    if "keep_rates" in arguments:
        arguments["keep_rates"] = (keep_rate,) * len(arguments["keep_rates"])
    restate_surgery(model, "evit", keep_rate=keep_rate)


def scheduled_keep_rate(epoch: float, keep_rate: float = 0.7, start: float = 10, length: float = 100) -> float:
    """The rate of a training from scratch: 1 up to epoch `start`, then falling along a cosine over `length` epochs.

    r(t) = r + (1 - r) (cos(pi t / length) + 1) / 2   for t epochs after the start
    """
    if epoch < start:
        return 1.0
    t = min((epoch - start) / length, 1.0)
    return keep_rate + (1 - keep_rate) * (math.cos(math.pi * t) + 1) / 2
