"""Attention layers whose forward pass is replaced inside a block: of mereo, and as the library diffusers writes them.

Nothing of the model is edited: the replacement stands on the instance and is taken away at the end, after errors too.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core.kernels.attention import attend
from mereo.errors import UsageError, unknown
from mereo.mechanisms.attention.dense.multi_head import MultiHeadAttention, four_axes


class AttentionLayer:
    """The parts of an attention layer, whoever wrote it.

    Args:
        module: a `MultiHeadAttention`, or any layer with to_q, to_k, to_v, to_out and heads.

    Attributes:
        plain: its forward pass outside the block.
        reads_grid: whether it is self-attention of the cells of an image.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = module
        self.own = isinstance(module, MultiHeadAttention)
        self.plain: Callable[..., Tensor] = module.forward
        self.reads_grid = hasattr(module, "side") if self.own else not getattr(module, "is_cross_attention", False)
        self.projections = ("query", "key", "value") if self.own else ("to_q", "to_k", "to_v")

    def project(self, which: int, x: Tensor) -> Tensor:
        """Queries (0), keys (1) or values (2), without positions: (batch, n, dim) -> (batch, heads, n, d)."""
        heads = self.module.num_heads if self.own else self.module.heads
        y: Tensor = getattr(self.module, self.projections[which])(x)
        return y.unflatten(-1, (heads, -1)).transpose(1, 2)

    def turned(self, x: Tensor, places: Tensor) -> Tensor:
        """Queries or keys with the positions of cells, where the layer has any: int64 (n,) or (batch, n)."""
        turn = getattr(self.module, "turned", None)
        return x if turn is None else turn(x, places)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """softmax(q k^T scale + bias) v, of the pairs of the mask, (batch, heads, n, d)."""
        if self.own:
            return attend(q, k, v, self.module.coupling, mask=mask, bias=bias)
        if mask is not None and bias is not None:
            bias = bias.masked_fill(~mask, torch.finfo(bias.dtype).min)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask if bias is None else bias, scale=self.module.scale
        )

    def couplings(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`attend` with its couplings, (batch, heads, n, senders)."""
        scores = (q * (q.shape[-1] ** -0.5 if self.own else self.module.scale)) @ k.transpose(-1, -2)
        scores = scores if bias is None else scores + bias
        if self.own:
            made = self.module.coupling(scores, mask)
        else:
            made = (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1)
        return made, made @ v

    def merge(self, mixed: Tensor) -> Tensor:
        """The output projection: (batch, heads, n, d) -> (batch, n, dim)."""
        joined = mixed.transpose(1, 2).flatten(2)
        if self.own:
            projected: Tensor = self.module.proj(joined)
            return self.module.proj_drop(projected) if self.module.proj_drop.p else projected
        for part in self.module.to_out:
            joined = part(joined)
        return joined


Replacement = Callable[[AttentionLayer, Tensor, Tensor | None, Tensor | None], Tensor]
"""(layer, tokens, context or None, mask of the context or None) -> output of the layer."""


def attention_layers(model: nn.Module) -> dict[str, AttentionLayer]:
    """The attention layers of a model by name; UsageError if there is none."""
    found = {
        name: AttentionLayer(module)
        for name, module in model.named_modules()
        if isinstance(module, MultiHeadAttention) or all(hasattr(module, part) for part in ("to_q", "to_v", "to_out"))
    }
    if not found:
        raise UsageError(
            f"model is a {type(model).__name__} without attention that can be replaced; give one with layers of mereo's"
            " MultiHeadAttention, or of diffusers' Attention."
        )
    return found


def chosen_layers(argument: str, names: Collection[str] | None, there: Collection[str]) -> list[str]:
    """The names of layers, all if None; UsageError for one that does not exist, and for none at all."""
    for name in names or ():
        if name not in there:
            raise unknown(f"layer in {argument}", name, there)
    chosen = [*there] if names is None else [name for name in there if name in names]
    if not chosen:
        raise UsageError(f"{argument} is {names}, which are no layers; known: {', '.join(there) or 'none'}.")
    return chosen


@contextmanager
def replaced(layers: Mapping[str, AttentionLayer], forward: Callable[[str], Replacement]) -> Iterator[None]:
    """Run `forward(name)` in place of the forward pass of each of these layers, eagerly, inside the block."""

    def run(replacement: Replacement, layer: AttentionLayer) -> Callable[..., Tensor]:
        def call(*given: Tensor | None, **named: Any) -> Tensor:
            tokens: Any = given[0] if given else named.pop("tokens", named.pop("hidden_states", None))
            rest = [*given[1:], *[None] * (2 - len(given[1:]))]
            context = rest[0] if rest[0] is not None else named.get("context", named.get("encoder_hidden_states"))
            mask = rest[1] if rest[1] is not None else named.get("mask", named.get("attention_mask"))
            return replacement(layer, tokens, context, mask)

        return call

    before = {name: layer.module.__dict__.get("forward") for name, layer in layers.items()}
    try:
        for name, layer in layers.items():
            layer.module.forward = run(forward(name), layer)
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for name, layer in layers.items():
            if before[name] is None:
                layer.module.__dict__.pop("forward", None)
            else:
                layer.module.forward = before[name]


def split_mask(mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The mask of a layer as a bool mask and an additive bias with the axes of couplings, one of them None."""
    if mask is None:
        return None, None
    if mask.dtype == torch.bool:
        return four_axes(mask), None
    return None, mask if mask.dim() == 4 else mask.unsqueeze(1) if mask.dim() == 3 else mask[:, None, None]
