"""BiFormer: a pyramid of four stages, three with bi-level routing attention and the last with full attention.

Source: Zhu, Wang, Ke, Zhang, Lau 2023, arXiv:2303.08810.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core.initialise import start_linears
from mereo.core.shapes import image_size
from mereo.core.squash import bounded
from mereo.errors import UsageError, check_positive, check_probability
from mereo.layers import FeedForward, SelfAttention, StochasticDepth, linear_rates
from mereo.mechanisms.attention.sparse import BiLevelRoutingAttention
from mereo.models.base import VisionModel
from mereo.models.layout import Pair, register_layout
from mereo.models.registry import IMAGENET, register_model

LARGEST = 1e6
"""Pixels beyond this are clamped, so that sums of features fit float32."""
STRIDES = {4: (2, 2), 2: (2, 1), 1: (1, 1)}
"""Strides of the two convolutions at the start, by their product."""


class EnhancedAttention(SelfAttention):
    """Full attention and a depthwise convolution of its input: out = W_o [attention(x) + DW5x5(x)] + b.

    Args:
        dim: channels.
        num_heads: independent sets of couplings; divides `dim`.

    Shapes: maps (batch, rows, columns, dim) -> the same.
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__(dim, num_heads, qkv_bias=False)
        self.local = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)

    def forward(self, cells: Tensor) -> Tensor:
        local = self.local(cells.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return self.proj(self.mix(cells) + local)


class BiFormerBlock(nn.Module):
    """x += DW3x3(x);  x += attention(LN(x));  x += FFN(LN(x)).

    Args:
        dim: channels.
        attention: maps -> maps.
        mlp_ratio: hidden size of the FFN as a multiple of `dim`.
        positions: whether the first line is used, which encodes positions.
        drop_path: rate of stochastic depth.

    Shapes: maps (batch, rows, columns, dim) -> the same.
    """

    def __init__(self, dim: int, attention: nn.Module, mlp_ratio: float, positions: bool, drop_path: float) -> None:
        super().__init__()
        self.positions = nn.Conv2d(dim, dim, 3, padding=1, groups=dim) if positions else None
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attention = attention
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = FeedForward(dim, int(mlp_ratio * dim))
        self.drop_path = StochasticDepth(drop_path)
        self.folded = False

    def forward(self, maps: Tensor) -> Tensor:
        if self.positions is not None:
            moved = self.positions(maps.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            maps = moved if self.folded else moved + maps
        maps = maps + self.drop_path(self.attention(self.norm1(maps)))
        return maps + self.drop_path(self.mlp(self.norm2(maps)))

    @torch.no_grad()
    def for_inference(self) -> nn.Module:
        """Adds the identity of x + DW3x3(x) to the filters."""
        if self.positions is not None and not self.folded:
            self.positions.weight[:, :, 1, 1] += 1
            self.folded = True
        return self


class BiFormerStage(nn.Module):
    """Smaller maps with more channels, then blocks.

    Args:
        inputs, width: channels before and after.
        blocks: of the stage.
        strides: of the two convolutions at the start if the inputs are images; None for maps, whose sides become
            half.
        swin_layout: see `BiFormer`. Maps that its filters do not divide are padded below and right.

    Shapes: (batch, inputs, height, width) -> (batch, width, rows, columns), rounded up.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        blocks: list[BiFormerBlock],
        strides: tuple[int, int] | None,
        swin_layout: bool,
    ) -> None:
        super().__init__()
        self.tile = (2 if strides is None else strides[0] * strides[1]) if swin_layout else 1
        if swin_layout:
            conv = nn.Conv2d(inputs, width, self.tile, self.tile)
            enter: list[nn.Module] = [conv, nn.BatchNorm2d(width)] if strides else [nn.BatchNorm2d(inputs), conv]
        elif strides:
            half = width // 2
            enter = [nn.Conv2d(inputs, half, 3, strides[0], 1), nn.BatchNorm2d(half), nn.GELU()]
            enter += [nn.Conv2d(half, width, 3, strides[1], 1), nn.BatchNorm2d(width)]
        else:
            enter = [nn.Conv2d(inputs, width, 3, 2, 1), nn.BatchNorm2d(width)]
        self.enter = nn.Sequential(*enter)
        self.blocks = nn.Sequential(*blocks)

    def forward(self, maps: Tensor) -> Tensor:
        below, right = (-side % self.tile for side in maps.shape[2:])
        if below or right:
            maps = F.pad(maps, (0, right, 0, below))
        cells: Tensor = self.blocks(self.enter(maps).permute(0, 2, 3, 1))
        return cells.permute(0, 3, 1, 2)


class BiFormer(VisionModel):
    """A four-stage pyramid of attention: regions choose which regions they read, except in the last stages.

    Args:
        num_classes, in_chans, img_size: as in timm. Images may have any size; see `pad`.
        widths, depths: channels and blocks of each stage.
        top_k: regions that each region reads in each stage; 0 for full attention.
        regions: along each side of a map; the paper changes it with the size of the images.
        head_dim: channels of a head where attention is routed.
        num_heads: of full attention.
        mlp_ratio: hidden size of the FFN as a multiple of the channels.
        soft, pad: see `BiLevelRoutingAttention`.
        swin_layout: the layout of Swin-T: patches of 4 x 4, 2 x 2 convolutions after the norm between the stages, and
            no depthwise convolution before the attention.
        stem_stride: of the first stage: 4 pixels a cell, or 2 or 1 for small images.
        drop_path_rate: stochastic depth of the last block; it rises linearly.
    """

    first_conv = "stages.0.enter.0"
    fixed_input_size = False

    def __init__(
        self,
        num_classes: int = 1000,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 224,
        *,
        widths: tuple[int, ...] = (64, 128, 256, 512),
        depths: tuple[int, ...] = (2, 2, 8, 2),
        top_k: tuple[int, ...] = (1, 4, 16, 0),
        regions: int = 7,
        head_dim: int = 32,
        num_heads: int = 8,
        mlp_ratio: float = 3.0,
        soft: bool = False,
        pad: str = "masked",
        swin_layout: bool = False,
        stem_stride: int = 4,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        if not len(widths) == len(depths) == len(top_k) > 0:
            raise UsageError(
                f"widths is {widths}, depths {depths} and top_k {top_k}; each must have an entry for every stage."
            )
        for i, (width, depth, k) in enumerate(zip(widths, depths, top_k, strict=True)):
            check_positive(**{f"widths[{i}]": width, f"depths[{i}]": depth})
            heads = head_dim if k else num_heads
            if k < 0 or width % heads:
                raise UsageError(
                    f"top_k[{i}] is {k} and widths[{i}] {width}; top_k must be at least 0, and the width a multiple of"
                    f" {'head_dim' if k else 'num_heads'}, {heads}."
                )
        check_positive(head_dim=head_dim, num_heads=num_heads, mlp_ratio=mlp_ratio)
        if stem_stride not in STRIDES:
            raise UsageError(f"stem_stride is {stem_stride}; it must be 1, 2 or 4.")
        check_probability(drop_path_rate=drop_path_rate)
        self.image_shape, self.num_features = (in_chans, *image_size(img_size)), widths[-1]
        rates = iter(linear_rates(drop_path_rate, sum(depths)))
        routed = partial(BiLevelRoutingAttention, regions=regions, soft=soft, pad=pad)
        self.stages = nn.ModuleList()
        for i, (inputs, width) in enumerate(pairwise((in_chans, *widths))):
            blocks = []
            for _ in range(depths[i]):
                attention: nn.Module = EnhancedAttention(width, num_heads)
                if top_k[i]:
                    attention = routed(width, width // head_dim, top_k=top_k[i])
                blocks.append(BiFormerBlock(width, attention, mlp_ratio, not swin_layout, next(rates)))
            strides = None if i else STRIDES[stem_stride]
            self.stages.append(BiFormerStage(inputs, width, blocks, strides, swin_layout))
        self.norm = nn.BatchNorm2d(widths[-1])
        self.feature_info = [
            {"num_chs": width, "reduction": stem_stride * 2**i, "module": f"stages.{i}"}
            for i, width in enumerate(widths)
        ]
        start_linears(self)
        self.reset_classifier(num_classes)

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        return self.stages[index](inputs if index else bounded(inputs, LARGEST))

    def neck(self, maps: list[Tensor]) -> Tensor:
        return self.norm(maps[-1])

    def as_map(self, tensor: Tensor, norm: bool) -> Tensor:
        return self.neck([tensor]) if norm and tensor.shape[1] == self.num_features else tensor

    def pool(self, features: Tensor) -> Tensor:
        return features.mean((2, 3))

    def make_classifier(self) -> nn.Module:
        return start_linears(nn.Linear(self.num_features, self.num_classes))


def _official_pairs(model: BiFormer) -> Iterator[Pair]:
    for i, stage in enumerate(model.stages):
        assert isinstance(stage, BiFormerStage)
        yield Pair(f"stages.{i}.enter", f"downsample_layers.{i}")
        for j, block in enumerate(stage.blocks.children()):
            ours, theirs = f"stages.{i}.blocks.{j}", f"stages.{i}.{j}"
            assert isinstance(block, BiFormerBlock)
            routed = isinstance(block.attention, BiLevelRoutingAttention)
            yield Pair(f"{ours}.attention.qkv", f"{theirs}.attn.qkv.qkv" if routed else f"{theirs}.attn.qkv")
            yield Pair(f"{ours}.attention.proj", f"{theirs}.attn.wo" if routed else f"{theirs}.attn.proj")
            yield Pair(f"{ours}.attention.local", f"{theirs}.attn.lepe")
            yield Pair(f"{ours}.positions", f"{theirs}.pos_embed")
            yield Pair(f"{ours}.mlp.first", f"{theirs}.mlp.0")
            yield Pair(f"{ours}.mlp.second", f"{theirs}.mlp.3")
            yield Pair(ours, theirs)
    yield Pair("norm", "norm")
    yield Pair("head", "head")


register_layout("official", BiFormer, _official_pairs)

_SHARED: dict[str, Any] = {
    "source": "arXiv:2303.08810", "recipe": "biformer", "crop_pct": 0.875, **IMAGENET,
}  # fmt: skip
_WIDE = (96, 192, 384, 768)

_register: Callable[..., None] = partial(register_model, module=BiFormer, drop_path_rate=0.1, **_SHARED)

_register(
    "biformer_tiny",
    summary="BiFormer-T: 13.1 million parameters, 81.4 % on ImageNet in the paper.",
    parameters=13_142_760,
    tiny={
        "img_size": 32, "widths": (8, 8, 16), "depths": (1, 1, 1), "top_k": (1, 2, 0), "regions": 2, "head_dim": 4,
        "num_heads": 2, "num_classes": 5, "drop_path_rate": 0.0,
    },
    variants={
        "swin layout": {"swin_layout": True, "soft": True, "top_k": (2, 4, 0)},
        "legacy": {"pad": "legacy", "top_k": (2, 3, 1)},
    },
    )  # fmt: skip
_register(
    "biformer_small",
    summary="BiFormer-S: 25.5 million parameters, 83.8 % on ImageNet in the paper.",
    parameters=25_536_232,
    depths=(4, 4, 18, 4),
    drop_path_rate=0.15,
)
_register(
    "biformer_base",
    summary="BiFormer-B: 56.8 million parameters, 84.3 % on ImageNet in the paper.",
    parameters=56_804_968,
    widths=_WIDE,
    depths=(4, 4, 18, 4),
    drop_path_rate=0.4,
)
_register(
    "biformer_stl",
    summary="BiFormer in the layout of Swin-T, for ablations: 28.4 million parameters, 82.7 % on ImageNet (paper).",
    parameters=28_372_552,
    widths=_WIDE,
    depths=(2, 2, 6, 2),
    mlp_ratio=4.0,
    swin_layout=True,
)
