"""Which attention for which tokens: the mechanisms that can stand where dense self-attention stands, side by side.

One entry of `CHOICES` is one row of the table that `mereo bench choose` prints.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import nn

from mereo.mechanisms.attention import (
    BiLevelRoutingAttention,
    BlockAttention,
    ChannelGroupAttention,
    ClearAttention,
    CombinerAttention,
    GridAttention,
    HaloAttention,
    MoHAttention,
    MultiHeadAttention,
    NeighborhoodAttention,
    RoutingAttention,
    WindowAttention,
)
from mereo.mechanisms.scan import LightningAttention

Tokens = Literal["sequence", "image", "channels first"]
"""Shapes of the input: (batch, tokens, dim), (batch, rows, columns, dim) or (batch, dim, rows, columns)."""


@dataclass(frozen=True)
class Choice:
    """One row.

    Attributes:
        name: of the row.
        mechanism: name in the catalogue.
        make: (dim, heads, side of the image) -> the module.
        tokens: what it takes.
        takes: grids that it can take, in words.
        causal: "always", "option" or "no".
        compared: in what it differs from dense softmax attention.
        quadratic: whether its time grows with the square of the tokens.
    """

    name: str
    mechanism: str
    make: Callable[[int, int, int], nn.Module]
    tokens: Tokens
    takes: str
    causal: str
    compared: str
    quadratic: bool = False


CHOICES = (
    Choice(
        "multi-head", "multi_head", lambda dim, heads, side: MultiHeadAttention(dim, heads), "sequence",
        "any sequence", "option", "is dense", quadratic=True,
    ),
    Choice(
        "neighbourhood 7 x 7", "neighborhood", lambda dim, heads, side: NeighborhoodAttention(dim, heads, window=7),
        "image", "grid of 1 to 3 axes", "option, by axis", "exact inside a window around each token",
    ),
    Choice(
        "neighbourhood of 63, causal", "neighborhood",
        lambda dim, heads, side: NeighborhoodAttention(dim, heads, window=63, axes=1, causal=True), "sequence",
        "grid of 1 to 3 axes", "option, by axis", "exact inside a window behind each token",
    ),
    Choice(
        "CLEAR, radius 8", "clear", lambda dim, heads, side: ClearAttention(dim, heads, grid=(side, side), radius=8),
        "sequence", "text, then an image", "no", "exact for text, and inside a circle around each image token",
    ),
    Choice(
        "window 8 x 8", "window", lambda dim, heads, side: WindowAttention(dim, heads, 8), "image", "image", "no",
        "exact inside fixed windows",
    ),
    Choice(
        "block 8 x 8", "block_attention", lambda dim, heads, side: BlockAttention(dim, (8, 8), dim // heads), "image",
        "image", "no", "exact inside fixed blocks, with position biases",
    ),
    Choice(
        "grid 8 x 8", "grid_attention", lambda dim, heads, side: GridAttention(dim, (8, 8), dim // heads), "image",
        "image", "no", "exact among 64 tokens spread evenly, with position biases",
    ),
    Choice(
        "halo 8 + 3", "halo", lambda dim, heads, side: HaloAttention(dim, heads, block=8, halo=3), "channels first",
        "image", "no", "exact inside a block and around it, with position biases",
    ),
    Choice(
        "bi-level routing, 4 of the regions", "bi_level_routing",
        lambda dim, heads, side: BiLevelRoutingAttention(dim, heads, regions=max(side // 8, 2), top_k=4), "image",
        "image", "no", "exact among regions that are chosen by content",
    ),
    Choice(
        "clusters, half of the heads", "routing_attention",
        lambda dim, heads, side: RoutingAttention(dim, heads // 2, heads - heads // 2, clusters=side, window=side),
        "sequence", "any sequence", "option", "exact inside blocks, and among tokens of a k-means cluster",
    ),
    Choice(
        "Combiner, fixed", "combiner", lambda dim, heads, side: CombinerAttention(dim, heads), "sequence",
        "any sequence", "option", "near tokens directly, all others by summaries of blocks",
    ),
    Choice(
        "mixture of heads, half of them", "mixture_of_head",
        lambda dim, heads, side: MoHAttention(dim, heads, shared=heads // 4, active=heads // 2 - heads // 4),
        "sequence", "any sequence", "no", "each token uses some of the heads, which attend to all tokens",
        quadratic=True,
    ),
    Choice(
        "channel groups", "channel_group", lambda dim, heads, side: ChannelGroupAttention(dim, heads), "sequence",
        "any sequence", "no", "another function: channels attend to channels",
    ),
    Choice(
        "lightning", "lightning", lambda dim, heads, side: LightningAttention(dim, heads), "sequence", "any sequence",
        "always", "another function: linear, with a decay; streams with a state of fixed size",
    ),
)  # fmt: skip
