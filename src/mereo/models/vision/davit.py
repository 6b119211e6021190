"""DaViT: window attention between cells and group attention between channels, in turn, in a pyramid of four stages.

Source: Ding, Xiao, Codella, Luo, Wang, Yuan 2022, arXiv:2204.03645, and the authors' code. The forms "_fl" are the
image encoders of Florence-2, arXiv:2311.06242.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core.initialise import start_linears
from mereo.core.modes import autocasts
from mereo.core.shapes import image_size
from mereo.core.squash import bounded
from mereo.errors import UsageError, check_positive
from mereo.layers import ChannelNorm, FeedForward, StochasticDepth, linear_rates
from mereo.mechanisms.attention.dense.channel_group import ChannelGroupAttention
from mereo.mechanisms.attention.local.window import WindowAttention
from mereo.models.base import VisionModel
from mereo.models.layout import Pair, register_layout
from mereo.models.registry import IMAGENET, register_model


class PositionConv(nn.Conv2d):
    """x + conv(x), a depthwise convolution that encodes positions; the sum is part of the filters.

    x + conv(x; W) = conv(x; W + e),   e one in the centre of every filter

    Shapes: (batch, channels, rows, columns) -> the same.
    """

    centre: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 3, padding=1, groups=channels)
        self.register_buffer("centre", F.pad(torch.ones(1, 1, 1, 1), (1, 1, 1, 1)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype in (torch.float16, torch.bfloat16) or autocasts(x):
            return x + super().forward(x)  # a small weight added to a one would lose digits
        return self._conv_forward(x, self.weight + self.centre, self.bias)

    def for_inference(self) -> nn.Module:
        """A plain convolution with the sum in its filters."""
        plain = nn.Conv2d(self.in_channels, self.out_channels, 3, padding=1, groups=self.groups)
        plain.weight, plain.bias = nn.Parameter(self.weight + self.centre), self.bias
        return plain


class DualBlock(nn.Module):
    """One kind of attention with its feed-forward network, each after a convolution that encodes positions.

    x <- x + conv(x);   x <- x + attention(norm(x));   x <- x + conv(x);   x <- x + feed_forward(norm(x))

    Shapes: (batch, dim, rows, columns) -> the same.
    """

    def __init__(self, dim: int, attention: nn.Module, mlp_ratio: float, drop_path: float) -> None:
        super().__init__()
        self.position1 = PositionConv(dim)
        self.norm1 = nn.LayerNorm(dim)
        self.attention = attention
        self.position2 = PositionConv(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim, int(dim * mlp_ratio))
        self.drop_path = StochasticDepth(drop_path)

    def attend(self, cells: Tensor) -> Tensor:
        """The output of attention for cells (batch, rows, columns, dim)."""
        return self.attention(cells)

    def forward(self, maps: Tensor) -> Tensor:
        cells = self.position1(maps).permute(0, 2, 3, 1)
        cells = cells + self.drop_path(self.attend(self.norm1(cells)))
        cells = self.position2(cells.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        cells = cells + self.drop_path(self.feed_forward(self.norm2(cells)))
        return cells.permute(0, 3, 1, 2)


class SpatialBlock(DualBlock):
    """A `DualBlock` whose cells attend to the cells of their window."""


class ChannelBlock(DualBlock):
    """A `DualBlock` whose channels attend to the channels of their group."""

    def attend(self, cells: Tensor) -> Tensor:
        attended: Tensor = self.attention(cells.flatten(1, 2))
        return attended.view(cells.shape)


class Patches(nn.Module):
    """A convolution of some stride, with layer normalisation over channels before or after it.

    Images or maps whose sides the stride does not divide are padded below and to the right if `pads`.

    Shapes: (batch, inputs, height, width) -> (batch, outputs, ceil(height / stride), ceil(width / stride)).
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, *, norm_first: bool, pads: bool) -> None:
        super().__init__()
        self.norm_first, self.pads, self.stride = norm_first, pads, stride
        padding = 0 if kernel == stride else kernel // 2
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding)
        self.norm = ChannelNorm(inputs if norm_first else outputs)

    def forward(self, maps: Tensor) -> Tensor:
        maps = self.norm(maps) if self.norm_first else maps
        down, across = (-side % self.stride for side in maps.shape[2:])
        if self.pads and (down or across):
            maps = F.pad(maps, (0, across, 0, down))
        maps = self.conv(maps)
        return maps if self.norm_first else self.norm(maps)


class Stage(nn.Module):
    """Halves the map if it is not the first, then units of a spatial block and a channel block."""

    def __init__(self, downsample: nn.Module, blocks: list[DualBlock]) -> None:
        super().__init__()
        self.downsample = downsample
        self.blocks = nn.ModuleList(blocks)

    def forward(self, maps: Tensor) -> Tensor:
        maps = self.downsample(maps)
        for block in self.blocks:
            maps = block(maps)
        return maps


class DaViT(VisionModel):
    """Classify by attention between cells inside windows and between channels over the whole image, in turn.

    scores = head(norm(mean of the last map over its cells))

    Args:
        num_classes, in_chans, img_size: of the task; images of any size are taken.
        widths: channels of each stage.
        depths: units of each stage; a unit is a spatial block and a channel block.
        num_heads: of each stage, also the number of channel groups.
        window_size: cells down and across a window.
        mlp_ratio: hidden size of the feed-forward networks as a multiple of the width.
        qkv_bias: biases of queries, keys and values.
        stem_stride: of the first convolution: 4 with kernel 7, or 1 or 2 with kernel 3 for small images.
        down_kernel: of the convolutions between stages: 2, or 3 as in Florence-2.
        scale: of the scores between channels, see `ChannelGroupAttention`.
        drop_path_rate: of stochastic depth in the last block; it rises linearly from 0 in the first.

    Reference: arXiv:2204.03645, section 3.
    """

    first_conv = "stem.conv"
    fixed_input_size = False

    def __init__(
        self,
        num_classes: int = 1000,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 224,
        *,
        widths: tuple[int, ...] = (96, 192, 384, 768),
        depths: tuple[int, ...] = (1, 1, 3, 1),
        num_heads: tuple[int, ...] = (3, 6, 12, 24),
        window_size: int = 7,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        stem_stride: int = 4,
        down_kernel: int = 2,
        scale: str = "channels",
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        if not len(widths) == len(depths) == len(num_heads):
            raise UsageError(
                f"widths, depths and num_heads are {widths}, {depths}, {num_heads}; give the same number of each."
            )
        check_positive(widths=min(widths), depths=min(depths), num_heads=min(num_heads), mlp_ratio=mlp_ratio)
        for argument, value, choices in (("stem_stride", stem_stride, (1, 2, 4)), ("down_kernel", down_kernel, (2, 3))):
            if value not in choices:
                raise UsageError(f"{argument} is {value}; it must be one of {', '.join(map(str, choices))}.")
        self.scale = scale
        self.image_shape, self.num_features = (in_chans, *image_size(img_size)), widths[-1]
        self.stem = Patches(in_chans, widths[0], 7 if stem_stride == 4 else 3, stem_stride, norm_first=False, pads=True)
        rates, stages = iter(linear_rates(drop_path_rate, 2 * sum(depths))), []
        for i, (width, depth, heads) in enumerate(zip(widths, depths, num_heads, strict=True)):
            down: nn.Module = nn.Identity()
            if i > 0:
                down = Patches(widths[i - 1], width, down_kernel, 2, norm_first=True, pads=down_kernel == 2)
            blocks: list[DualBlock] = []
            for _ in range(depth):
                windows = WindowAttention(width, heads, window_size, qkv_bias=qkv_bias)
                blocks.append(SpatialBlock(width, windows, mlp_ratio, next(rates)))
                groups = ChannelGroupAttention(width, heads, qkv_bias=qkv_bias, scale=scale)
                blocks.append(ChannelBlock(width, groups, mlp_ratio, next(rates)))
            stages.append(Stage(down, blocks))
        self.stages = nn.ModuleList(stages)
        self.norm = nn.LayerNorm(self.num_features)
        self.feature_info = [
            {"num_chs": width, "reduction": stem_stride * 2**i, "module": f"stages.{i}"}
            for i, width in enumerate(widths)
        ]
        self.reset_parameters()
        self.reset_classifier(num_classes)

    def reset_parameters(self) -> None:
        """Initialise: truncated normal 0.02 for linear layers, biases of zero; PyTorch's default for convolutions."""
        start_linears(self)

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        return self.stages[index](self.stem(bounded(inputs)) if index == 0 else inputs)

    def pool(self, features: Tensor) -> Tensor:
        return self.norm(features.mean((2, 3)))

    def make_classifier(self) -> nn.Module:
        return start_linears(nn.Linear(self.num_features, self.num_classes))


TINY = {"widths": (8, 16), "depths": (1, 1), "num_heads": (2, 4), "window_size": 3, "img_size": 28}


def _preset(name: str, summary: str, parameters: int, tiny: dict[str, Any] | None = None, **arguments: Any) -> None:
    described: dict[str, Any] = {"source": "arXiv:2204.03645", "recipe": "davit", "crop_pct": 0.95, **IMAGENET}
    if tiny is not None:
        florence = {"down_kernel": 3, "scale": "tokens", "num_heads": (1, 2)}
        described |= {"tiny": tiny, "variants": {"florence": florence}}
    register_model(name, DaViT, summary, parameters=parameters, **described, **arguments)


_BASE: dict[str, Any] = {"widths": (128, 256, 512, 1024), "depths": (1, 1, 9, 1), "num_heads": (4, 8, 16, 32)}
_HUGE: dict[str, Any] = {"widths": (256, 512, 1024, 2048), "depths": (1, 1, 9, 1), "num_heads": (8, 16, 32, 64)}
_GIANT: dict[str, Any] = {"widths": (384, 768, 1536, 3072), "depths": (1, 1, 12, 3), "num_heads": (12, 24, 48, 96)}
_FLORENCE: dict[str, Any] = {"window_size": 12, "down_kernel": 3, "scale": "tokens", "img_size": 768}

_preset("davit_tiny", "DaViT-Tiny: 28 M parameters, 4.5 G multiply-adds at 224.", 28_360_168, TINY)
_preset("davit_small", "DaViT-Small: 50 M parameters, 8.8 G multiply-adds at 224.", 49_745_896, depths=(1, 1, 9, 1))
_preset("davit_base", "DaViT-Base: 88 M parameters, 15.5 G multiply-adds at 224.", 87_954_408, **_BASE)
_preset(
    "davit_large", "DaViT-Large: 197 M parameters.", 196_811_752,
    widths=(192, 384, 768, 1536), depths=(1, 1, 9, 1), num_heads=(6, 12, 24, 48),
)  # fmt: skip
_preset("davit_huge", "DaViT-Huge: 349 M parameters.", 348_922_856, **_HUGE)
_preset("davit_giant", "DaViT-Giant: 1.4 G parameters.", 1_406_470_120, **_GIANT)
_preset("davit_base_fl", "DaViT-Base as the image encoder of Florence-2, at 768.", 91_395_048, **_BASE, **_FLORENCE)
_preset("davit_huge_fl", "DaViT-Huge as the image encoder of Florence-2, at 768.", 362_685_416, **_HUGE, **_FLORENCE)


def _rotated(thirds: int) -> Callable[[Tensor], Tensor]:
    """A function that rotates the thirds of a projection: the authors' are value, query, key."""
    return lambda rows: torch.cat([rows.chunk(3)[(i + thirds) % 3] for i in range(3)])


def _block_pairs(block: DualBlock, ours: str, theirs: str, convolutions: tuple[str, str]) -> Iterator[Pair]:
    """The parts of a block under the names that timm and the authors share."""
    yield Pair(f"{ours}.position1", f"{theirs}.{convolutions[0]}.proj")
    yield Pair(f"{ours}.position2", f"{theirs}.{convolutions[1]}.proj")
    if isinstance(block.attention, ChannelGroupAttention) and block.attention.scale == "channels":
        for tensor in ("weight", "bias"):
            there = f"{theirs}.attn.qkv.{tensor}"
            yield Pair(f"{ours}.attention.qkv.{tensor}", there, _rotated(1), _rotated(2))
    yield Pair(f"{ours}.attention", f"{theirs}.attn")
    yield Pair(f"{ours}.feed_forward.first", f"{theirs}.mlp.fc1")
    yield Pair(f"{ours}.feed_forward.second", f"{theirs}.mlp.fc2")
    yield Pair(ours, theirs)


def _timm_pairs(model: DaViT) -> Iterator[Pair]:
    yield from (Pair("stem", "stem"), Pair("norm", "head.norm"), Pair("head", "head.fc"))
    for i, stage in enumerate(cast(Iterable[Stage], model.stages)):
        yield Pair(f"stages.{i}.downsample", f"stages.{i}.downsample")
        for j, block in enumerate(cast(Iterable[DualBlock], stage.blocks)):
            place = str(j % 2) if model.scale == "channels" else ("spatial_block", "channel_block")[j % 2]
            theirs = f"stages.{i}.blocks.{j // 2}.{place}"
            yield from _block_pairs(block, f"stages.{i}.blocks.{j}", theirs, ("cpe1", "cpe2"))


def _official_pairs(model: DaViT) -> Iterator[Pair]:
    yield from (Pair("norm", "norms"), Pair("head", "head"))
    for i, stage in enumerate(cast(Iterable[Stage], model.stages)):
        patches = f"stages.{i}.downsample" if i else "stem"
        yield Pair(f"{patches}.conv", f"patch_embeds.{i}.proj")
        yield Pair(f"{patches}.norm", f"patch_embeds.{i}.norm")
        for j, block in enumerate(cast(Iterable[DualBlock], stage.blocks)):
            theirs = f"main_blocks.{i}.{j // 2}.{j % 2}"
            yield from _block_pairs(block, f"stages.{i}.blocks.{j}", theirs, ("cpe.0", "cpe.1"))


def _arguments(source: Any) -> dict[str, Any]:
    """Ours, from a live network of timm."""
    spatial, channel = (list(pair) for pair in zip(*([*unit] for s in source.stages for unit in s.blocks), strict=True))
    tokens = bool(getattr(channel[0].attn, "dynamic_scale", False))
    stem, last = source.stem.conv, channel[-1]
    return {
        "num_classes": source.num_classes,
        "in_chans": stem.in_channels,
        "widths": tuple(stage.blocks[0][0].dim for stage in source.stages),
        "depths": tuple(len(stage.blocks) for stage in source.stages),
        "num_heads": tuple(stage.blocks[0][0].num_heads for stage in source.stages),
        "window_size": spatial[0].window_size[0],
        "mlp_ratio": float(spatial[0].mlp_ratio),
        "qkv_bias": spatial[0].attn.qkv.bias is not None,
        "down_kernel": source.stages[-1].downsample.conv.kernel_size[0] if len(source.stages) > 1 else 2,
        "scale": "tokens" if tokens else "channels",
        "drop_path_rate": float(getattr(last.drop_path1, "drop_prob", None) or 0.0),
    }


register_layout("timm", DaViT, _timm_pairs, classes=("DaVit",), arguments=_arguments)
register_layout("official", DaViT, _official_pairs)
