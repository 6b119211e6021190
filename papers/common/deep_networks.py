"""A small vision transformer of any depth, with any form of residual branches and three ways of the class token, and a
block of a plain one."""

from typing import Any

import torch
from torch import Tensor, nn

from mereo.errors import UsageError, check_choice
from mereo.layers import FeedForward, Residual
from mereo.layers.residual import start_by_depth
from mereo.mechanisms.attention import ClassAttention, MultiHeadAttention

TOKENS = ("first", "late", "class attention")
"""Where the class token joins: in the first layer, in the last two, or there by class attention."""
LATE = 2


class DeepTransformer(nn.Module):
    """Classify small images by `depth` layers of attention and feed-forward.

    Args:
        image_shape: (channels, height, width).
        num_classes: how many.
        depth: number of layers, including the layers of the class token.
        patch: side of a patch.
        dim, heads: size of the tokens, and of how many heads attention has.
        residual: form of the residual branches, one of `mereo.layers.residual.FORMS`.
        start: initial gains of "scalar" and "layer_scale"; by default chosen by depth, as in the paper.
        token: one of `TOKENS`. From the last two layers on, patches go on changing with "late" and do not with "class
            attention".

    Shapes: images (batch, channels, height, width) -> (batch, num_classes).
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        depth: int,
        *,
        patch: int = 8,
        dim: int = 48,
        heads: int = 3,
        residual: str = "layer_scale",
        start: float | None = None,
        token: str = "first",
    ) -> None:
        super().__init__()
        check_choice("token", token, TOKENS)
        channels, height, width = image_shape
        if min(height, width) < patch or depth <= LATE:
            raise UsageError(
                f"image_shape is {image_shape} and depth {depth}; give at least {patch} pixels and over {LATE} layers."
            )
        self.token = token
        self.patches = nn.Conv2d(channels, dim, patch, patch)
        self.positions = nn.Parameter(0.02 * torch.randn(1, (height // patch) * (width // patch), dim))
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        if start is None:
            start = 0.1 if depth <= 18 else 1e-5 if depth <= 24 else 1e-6
        how: dict[str, Any] = {"form": residual, "start": start}
        gathering = LATE if token == "class attention" else 0
        attentions, feed_forwards, paths = [], [], []
        for layer in range(depth):
            kind: type[ClassAttention | MultiHeadAttention]
            kind = ClassAttention if layer >= depth - gathering else MultiHeadAttention
            attention, feed_forward = kind(dim, heads), FeedForward(dim, 4 * dim)
            for linear in (attention.query, attention.key, attention.value, attention.proj, *feed_forward.children()):
                if isinstance(linear, nn.Linear):
                    nn.init.xavier_uniform_(linear.weight)
                    nn.init.zeros_(linear.bias)
            paths += [(attention.value.weight, attention.proj), (feed_forward.first.weight, feed_forward.second)]
            attentions.append(Residual(attention, dim, "proj", **how))
            feed_forwards.append(Residual(feed_forward, dim, "second", **how))
        self.attentions, self.feed_forwards = nn.ModuleList(attentions), nn.ModuleList(feed_forwards)
        start_by_depth(residual, paths)
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).mT + self.positions
        summary = self.class_token.expand(len(tokens), -1, -1)
        joins = 0 if self.token == "first" else len(self.attentions) - LATE
        apart: Tensor | None = None
        for layer, (attention, feed_forward) in enumerate(zip(self.attentions, self.feed_forwards, strict=True)):
            assert isinstance(attention, Residual)
            if layer == joins and self.token == "class attention":
                tokens, apart = summary, tokens
            elif layer == joins:
                tokens = torch.cat((summary, tokens), 1)
            if apart is not None:
                both = attention.prepare(torch.cat((tokens, apart), 1))
                tokens = feed_forward(attention.add(tokens, attention.branch(both)))
            else:
                tokens = feed_forward(attention(tokens))
        scores: Tensor = self.head(self.norm(tokens[:, 0]))
        return scores


class PatchBlock(nn.Module):
    """x += attention(norm(x)); x += feed_forward(norm(x)), in the form that reductions of tokens expect."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn, self.mlp = MultiHeadAttention(dim, heads), FeedForward(dim, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))
