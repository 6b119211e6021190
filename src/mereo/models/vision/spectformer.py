"""SpectFormer, the vanilla family: a vision transformer whose first blocks mix tokens in the frequency domain.

Source: Patro, Namboodiri, Agneeswaran 2023, arXiv:2304.06446, section 3, with what the authors' code leaves open.
Cost: 1.8 G to 11.5 G multiply-adds an image for T to B at 224 x 224.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.init import trunc_normal_

from mereo.core.initialise import start_linears
from mereo.core.shapes import image_size
from mereo.core.squash import bounded
from mereo.errors import UsageError, check_heads, check_positive
from mereo.layers import FeedForward, SelfAttention, StochasticDepth, linear_rates, resize_positions
from mereo.mechanisms.mixer.spectral_gating import SpectralGating
from mereo.models.base import VisionModel
from mereo.models.layout import Pair, register_layout
from mereo.models.registry import IMAGENET, register_model


class SpectralBlock(nn.Module):
    """x + feed_forward(norm_2(gating(norm_1(x)))): one residual around all.

    Shapes: maps (batch, dim, rows, columns), in channels-last memory -> the same.
    """

    def __init__(self, dim: int, size: tuple[int, int], hidden: int, drop_path: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.gating = SpectralGating(dim, size)
        self.feed_forward = FeedForward(dim, hidden)
        self.drop_path = StochasticDepth(drop_path)

    def forward(self, maps: Tensor) -> Tensor:
        size = (maps.shape[2], maps.shape[3])
        x = maps.permute(0, 2, 3, 1).flatten(1, 2)
        x = x + self.drop_path(self.feed_forward(self.norm2(self.gating(self.norm1(x), size))))
        return x.unflatten(1, size).permute(0, 3, 1, 2)


class AttentionBlock(nn.Module):
    """x += attention(norm_1(x)); x += feed_forward(norm_2(x)). Shapes: as `SpectralBlock`."""

    def __init__(self, dim: int, num_heads: int, hidden: int, drop_path: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.attention = SelfAttention(dim, num_heads)
        self.feed_forward = FeedForward(dim, hidden)
        self.drop_path = StochasticDepth(drop_path)

    def forward(self, maps: Tensor) -> Tensor:
        x = maps.permute(0, 2, 3, 1).flatten(1, 2)
        x = x + self.drop_path(self.attention(self.norm1(x)))
        x = x + self.drop_path(self.feed_forward(self.norm2(x)))
        return x.unflatten(1, maps.shape[2:]).permute(0, 3, 1, 2)


class SpectFormer(VisionModel):
    """Classify with a transformer whose first blocks gate frequencies and whose other blocks attend.

    x = patches(image) + positions;  spectral blocks;  attention blocks;  scores = W mean(norm x) + b

    Args:
        num_classes, in_chans, img_size: as in timm. Images of other sizes resize the positions and filters.
        patch_size: side of the patches.
        dim, depth, num_heads: channels, blocks, and heads of attention.
        spectral_layers: how many blocks are spectral (alpha).
        spectral_first: whether these are the first blocks; otherwise the last.
        ratio: hidden size of the feed-forward over `dim`.
        drop_path_rate: of stochastic depth in the last block; it rises linearly from 0 in the first.

    Shapes: images (batch, in_chans, height, width) -> scores (batch, num_classes); the map of each block is
        (batch, dim, rows, columns) with rows = height // patch_size.

    Deviates: 64 channels a head in all presets; the released code has 6 heads in all of them, and its comment 4, 6 and
        12, which do not all divide the channels.

    Reference: arXiv:2304.06446, figure 2 and table 1.
    """

    first_conv = "patches"
    partial_cells = False
    fixed_input_size = False

    def __init__(
        self,
        num_classes: int = 1000,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 224,
        *,
        patch_size: int = 16,
        dim: int = 384,
        depth: int = 12,
        num_heads: int = 6,
        spectral_layers: int = 4,
        spectral_first: bool = True,
        ratio: float = 4.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(patch_size=patch_size, depth=depth, ratio=ratio)
        if not 0 <= spectral_layers <= depth:
            raise UsageError(f"spectral_layers is {spectral_layers}; it must be between 0 and depth, {depth}.")
        check_heads(dim, num_heads)
        hidden = round(ratio * dim)
        if hidden < 1:
            raise UsageError(f"ratio is {ratio} with dim {dim}; their product must be at least 1.")
        height, width = image_size(img_size)
        if min(height, width) < patch_size:
            raise UsageError(
                f"img_size is {img_size}; no patch of {patch_size} x {patch_size} fits. Give a larger one."
            )
        self.image_shape, self.num_features = (in_chans, height, width), dim
        self.grid = (height // patch_size, width // patch_size)
        self.patch_size = patch_size
        self.patches = nn.Conv2d(in_chans, dim, patch_size, patch_size)
        self.positions = nn.Parameter(torch.zeros(1, self.grid[0] * self.grid[1], dim))
        spectral = range(spectral_layers) if spectral_first else range(depth - spectral_layers, depth)
        self.stages = nn.ModuleList(
            SpectralBlock(dim, self.grid, hidden, rate)
            if i in spectral
            else AttentionBlock(dim, num_heads, hidden, rate)
            for i, rate in enumerate(linear_rates(drop_path_rate, depth))
        )
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.feature_info = [{"num_chs": dim, "reduction": patch_size, "module": f"stages.{i}"} for i in range(depth)]
        self.reset_classifier(num_classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise positions and linear layers: truncated normal of 0.02, biases of zero."""
        trunc_normal_(self.positions, std=0.02)
        start_linears(self)

    def embed(self, images: Tensor) -> Tensor:
        """Patches with their positions: (batch, dim, rows, columns)."""
        if min(images.shape[2:]) < self.patch_size:
            raise UsageError(f"images are {tuple(images.shape)}; they must have sides of at least {self.patch_size}.")
        # The variances of larger entries overflow in the first norm.
        maps = self.patches(bounded(images))
        size = (maps.shape[2], maps.shape[3])
        positions = resize_positions(self.positions, self.grid, size)
        return (maps.permute(0, 2, 3, 1) + positions.unflatten(1, size)).permute(0, 3, 1, 2)

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        return self.stages[index](self.embed(inputs) if index == 0 else inputs)

    def as_map(self, tensor: Tensor, norm: bool) -> Tensor:
        return self.norm(tensor.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) if norm else tensor

    def neck(self, maps: list[Tensor]) -> Tensor:
        """Normalised tokens (batch, rows * columns, dim)."""
        return self.norm(maps[-1].permute(0, 2, 3, 1).flatten(1, 2))

    def pool(self, features: Tensor) -> Tensor:
        return features.mean(1)

    def make_classifier(self) -> nn.Module:
        return start_linears(nn.Linear(self.num_features, self.num_classes))

    def no_weight_decay(self) -> set[str]:
        return {"positions"}


def _pairs(model: SpectFormer) -> Iterator[Pair]:
    yield from (Pair("patches", "patch_embed.proj"), Pair("positions", "pos_embed"))
    names = {
        "norm1": "norm1", "norm2": "norm2", "gating.filter": "filter.complex_weight", "attention.qkv": "attn.qkv",
        "attention.proj": "attn.proj", "feed_forward.first": "mlp.fc1", "feed_forward.second": "mlp.fc2",
    }  # fmt: skip
    for i in range(len(model.stages)):
        yield from (Pair(f"stages.{i}.{ours}", f"blocks.{i}.{theirs}") for ours, theirs in names.items())
    yield from (Pair("norm", "norm"), Pair("head", "head"))


register_layout("official", SpectFormer, _pairs)

_PAPER: dict[str, Any] = {"source": "arXiv:2304.06446", "crop_pct": 0.9, "recipe": "spectformer", **IMAGENET}

_register: Callable[..., None] = partial(register_model, module=SpectFormer, **_PAPER)

_register(
    "spectformer_tiny",
    summary="SpectFormer-T, vanilla.",
    parameters=9_158_376,
    dim=256,
    num_heads=4,
    tiny={
        "img_size": 16, "num_classes": 10, "patch_size": 4, "dim": 12, "depth": 3, "num_heads": 2, "spectral_layers": 1,
    },
    variants={"last": {"spectral_first": False}},
    )  # fmt: skip
_register(
    "spectformer_xsmall",
    summary="SpectFormer-XS, vanilla.",
    parameters=20_028_520,
    aliases=("spectformer_xs",),
)
_register(
    "spectformer_small",
    summary="SpectFormer-S, vanilla.",
    parameters=32_449_768,
    depth=19,
    drop_path_rate=0.15,
)
_register(
    "spectformer_base",
    summary="SpectFormer-B, vanilla.",
    parameters=57_159_656,
    dim=512,
    depth=19,
    num_heads=8,
    drop_path_rate=0.25,
)
