"""NAT and DiNAT: a pyramid whose cells attend to the cells nearest to them, next to each other or with gaps.

Source: Hassani, Walton, Li, Li, Shi 2022, arXiv:2204.07143; with dilation Hassani, Shi 2022, arXiv:2209.15001; and the
authors' code. Cost: 2.7 G to 13.7 G multiply-adds an image for mini to base at 224 x 224.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from mereo.core.initialise import start_linears
from mereo.core.shapes import image_size
from mereo.core.squash import bounded
from mereo.errors import UsageError, check_positive
from mereo.layers import ChannelNorm, FeedForward, Residual, linear_rates
from mereo.mechanisms.attention.local.neighborhood import NeighborhoodAttention
from mereo.models.base import VisionModel
from mereo.models.layout import Pair, register_layout
from mereo.models.registry import IMAGENET, register_model

STRIDES = {1: (1, 1), 2: (2, 1), 4: (2, 2)}


class NeighborhoodBlock(nn.Module):
    """x <- x + g * attention(norm x);  x <- x + g' * feed_forward(norm x).  Shapes: (batch, rows, columns, dim)."""

    def __init__(self, dim: int, num_heads: int, window: int, dilation: int, mlp_ratio: float, **residual: Any) -> None:
        super().__init__()
        attention = NeighborhoodAttention(
            dim, num_heads, window=window, dilation=dilation, position_bias=True, clip=True
        )
        feed_forward = FeedForward(dim, int(dim * mlp_ratio))
        self.attention = Residual(attention, dim, "proj", eps=1e-5, **residual)
        self.feed_forward = Residual(feed_forward, dim, "second", eps=1e-5, **residual)

    def forward(self, cells: Tensor) -> Tensor:
        return self.feed_forward(self.attention(cells))


class Stage(nn.Module):
    """Halves the map if it is not the first, then blocks.  Shapes: (batch, channels, rows, columns)."""

    def __init__(self, inputs: int | None, dim: int, blocks: list[NeighborhoodBlock]) -> None:
        super().__init__()
        self.downsample: nn.Module = nn.Identity()
        if inputs is not None:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, dim, 3, stride=2, padding=1, bias=False), ChannelNorm(dim)
            )
        self.blocks = nn.Sequential(*blocks)

    def forward(self, maps: Tensor) -> Tensor:
        cells: Tensor = self.blocks(self.downsample(maps).permute(0, 2, 3, 1))
        return cells.permute(0, 3, 1, 2)


class NAT(VisionModel):
    """Classify by neighbourhood attention in a pyramid of overlapping convolutions.

    scores = head(mean over cells of norm(last map))

    Args:
        num_classes, in_chans, img_size: of the task; images may have any size with a smallest map of at least two
            cells down and across.
        embed_dim: channels of the first stage, which double from stage to stage.
        depths: blocks of each stage.
        num_heads: of each stage.
        window_size: side of the neighbourhoods, in cells.
        dilations: of every second block of each stage; 1 in the others.
        mlp_ratio: hidden size of the feed-forward networks as a multiple of the channels.
        init_values: initial gains of the residual branches (LayerScale); 0 means no gains.
        stem_stride: of the two convolutions before the first stage: 4, or 1 or 2 for small images.
        drop_path_rate: of stochastic depth in the last block; it rises linearly from 0 in the first.

    Shapes: images (batch, in_chans, height, width) -> scores (batch, num_classes); the map of stage i is
        (batch, embed_dim 2^i, rows, columns) with rows = ceil(height / (stem_stride 2^i)).

    Deviates: where a map is smaller than a neighbourhood, the window and the dilation become the largest that it holds;
        the authors' code fills the map up with zeros, to which cells then attend.

    Reference: arXiv:2204.07143, section 3 and table 1; dilation: arXiv:2209.15001, section 3.
    """

    first_conv = "stem.0"
    fixed_input_size = False

    def __init__(
        self,
        num_classes: int = 1000,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 224,
        *,
        embed_dim: int = 64,
        depths: tuple[int, ...] = (3, 4, 6, 5),
        num_heads: tuple[int, ...] = (2, 4, 8, 16),
        window_size: int = 7,
        dilations: tuple[int, ...] = (1, 1, 1, 1),
        mlp_ratio: float = 3.0,
        init_values: float = 0.0,
        stem_stride: int = 4,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        if not len(depths) == len(num_heads) == len(dilations):
            raise UsageError(
                f"depths, num_heads and dilations are {depths}, {num_heads}, {dilations}; give the same number of each."
            )
        check_positive(embed_dim=embed_dim, depths=min(depths), num_heads=min(num_heads), dilations=min(dilations))
        if stem_stride not in STRIDES:
            raise UsageError(f"stem_stride is {stem_stride}; it must be 1, 2 or 4.")
        if embed_dim % 2 or int(embed_dim * mlp_ratio) < 1:
            raise UsageError(
                f"embed_dim is {embed_dim} and mlp_ratio {mlp_ratio}; embed_dim must be even, and their product at"
                " least 1."
            )
        widths = [embed_dim * 2**i for i in range(len(depths))]
        self.image_shape, self.num_features = (in_chans, *image_size(img_size)), widths[-1]
        first, second = STRIDES[stem_stride]
        self.stem = nn.Sequential(
            nn.Conv2d(in_chans, embed_dim // 2, 3, stride=first, padding=1),
            nn.Conv2d(embed_dim // 2, embed_dim, 3, stride=second, padding=1),
            ChannelNorm(embed_dim),
        )
        rates = iter(linear_rates(drop_path_rate, sum(depths)))
        form = {"form": "layer_scale" if init_values else "pre_norm", "start": init_values}
        self.stages = nn.ModuleList(
            Stage(
                widths[i - 1] if i else None,
                width,
                [
                    NeighborhoodBlock(
                        width, num_heads[i], window_size, dilations[i] if j % 2 else 1, mlp_ratio, rate=next(rates),
                        **form,
                    )
                    for j in range(depths[i])
                ],
            )
            for i, width in enumerate(widths)
        )  # fmt: skip
        self.norm = ChannelNorm(self.num_features)
        self.feature_info = [
            {"num_chs": width, "reduction": stem_stride * 2**i, "module": f"stages.{i}"}
            for i, width in enumerate(widths)
        ]
        self._check_size("img_size", self.image_shape[1:])
        self.reset_parameters()
        self.reset_classifier(num_classes)

    def reset_parameters(self) -> None:
        """Initialise: truncated normal 0.02 for linear layers, biases of zero; PyTorch's default for convolutions."""
        start_linears(self)

    def _check_size(self, argument: str, sides: tuple[int, ...]) -> None:
        least = int(self.feature_info[-1]["reduction"]) + 1
        if min(sides) < least:
            raise UsageError(
                f"{argument} is {tuple(sides)}; both sides must be at least {least}, so that the last map has"
                " two cells down and across. Give larger images, or a smaller stem_stride."
            )

    def check_images(self, images: Tensor) -> None:
        """UsageError also for images whose last map has fewer than two cells down or across."""
        super().check_images(images)
        self._check_size("height and width of the images", tuple(images.shape[2:]))

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        return self.stages[index](self.stem(bounded(inputs)) if index == 0 else inputs)

    def pool(self, features: Tensor) -> Tensor:
        return self.norm(features).mean((2, 3))

    def make_classifier(self) -> nn.Module:
        return start_linears(nn.Linear(self.num_features, self.num_classes))

    def no_weight_decay(self) -> set[str]:
        return {name for name, _ in self.named_parameters() if name.endswith("position_bias")}


def _pairs(model: NAT) -> Iterator[Pair]:
    for ours, theirs in (("stem.0", "proj.0"), ("stem.1", "proj.1"), ("stem.2", "norm")):
        yield Pair(ours, f"patch_embed.{theirs}")
    names = {
        "attention.norm": "norm1", "attention.scale.gain": "gamma1", "attention.branch.qkv": "attn.qkv",
        "attention.branch.position_bias": "attn.rpb", "attention.branch.proj": "attn.proj",
        "feed_forward.norm": "norm2", "feed_forward.scale.gain": "gamma2", "feed_forward.branch.first": "mlp.fc1",
        "feed_forward.branch.second": "mlp.fc2",
    }  # fmt: skip
    for i, info in enumerate(model.feature_info):
        if i:
            yield Pair(f"{info['module']}.downsample.0", f"levels.{i - 1}.downsample.reduction")
            yield Pair(f"{info['module']}.downsample.1", f"levels.{i - 1}.downsample.norm")
        stage = model.get_submodule(str(info["module"]))
        assert isinstance(stage, Stage)
        for j in range(len(stage.blocks)):
            for ours, theirs in names.items():
                yield Pair(f"stages.{i}.blocks.{j}.{ours}", f"levels.{i}.blocks.{j}.{theirs}")
    yield from (Pair("norm", "norm"), Pair("head", "head"))


register_layout("official", NAT, _pairs)

TINY: dict[str, Any] = {
    "embed_dim": 8, "depths": (2, 2), "num_heads": (1, 2), "dilations": (2, 1), "window_size": 3, "img_size": 28,
    "init_values": 0.1,
}  # fmt: skip
_DEEP = (3, 4, 18, 5)
_SMALL: dict[str, Any] = {"embed_dim": 96, "depths": _DEEP, "num_heads": (3, 6, 12, 24), "mlp_ratio": 2.0}
_BASE: dict[str, Any] = {"embed_dim": 128, "depths": _DEEP, "num_heads": (4, 8, 16, 32), "mlp_ratio": 2.0}
_LARGE: dict[str, Any] = {"embed_dim": 192, "depths": _DEEP, "num_heads": (6, 12, 24, 48), "mlp_ratio": 2.0}
_GAPS: dict[str, Any] = {"dilations": (8, 4, 2, 1)}
_SCALED: dict[str, Any] = {"init_values": 1e-5}

# Name: parameters, multiply-adds at 224 in G as published (None: not published), arguments.
PRESETS: dict[str, tuple[int, float | None, dict[str, Any]]] = {
    "nat_mini": (19_984_174, 2.7, {"drop_path_rate": 0.2}),
    "nat_tiny": (27_901_582, 4.3, {"depths": _DEEP, "drop_path_rate": 0.2}),
    "nat_small": (50_743_297, 7.8, {**_SMALL, **_SCALED, "drop_path_rate": 0.3}),
    "nat_base": (89_769_652, 13.7, {**_BASE, **_SCALED, "drop_path_rate": 0.5}),
    "dinat_mini": (19_984_174, 2.7, {**_GAPS, "drop_path_rate": 0.2}),
    "dinat_tiny": (27_901_582, 4.3, {**_GAPS, "depths": _DEEP, "drop_path_rate": 0.2}),
    "dinat_small": (50_719_681, 7.8, {**_GAPS, **_SMALL, "drop_path_rate": 0.3}),
    "dinat_base": (89_769_652, 13.7, {**_GAPS, **_BASE, **_SCALED, "drop_path_rate": 0.5}),
    "dinat_large": (200_943_514, None, {**_GAPS, **_LARGE, "drop_path_rate": 0.35}),
    "dinat_large_384": (
        200_943_514, None, {**_LARGE, "dilations": (13, 6, 3, 1), "drop_path_rate": 0.35, "img_size": 384},
    ),
    "dinat_large_384_11x11": (
        201_144_250, None, {**_LARGE, **_GAPS, "window_size": 11, "drop_path_rate": 0.35, "img_size": 384},
    ),
}  # fmt: skip

for _name, (_parameters, _cost, _given) in PRESETS.items():
    _kind, _, _size = _name.partition("_")
    _first = _name == "nat_mini"
    register_model(
        _name,
        NAT,
        f"{'DiNAT' if _kind == 'dinat' else 'NAT'}-{_size.replace('_', ' ').capitalize()}:"
        f" {_parameters / 1e6:.0f} M parameters" + (f", {_cost} G multiply-adds at 224." if _cost else "."),
        source="arXiv:2209.15001" if _kind == "dinat" else "arXiv:2204.07143",
        parameters=_parameters,
        crop_pct=1.0 if "384" in _name else 0.875,
        tiny=TINY if _first else None,
        variants={"without gaps": {"dilations": (1, 1), "init_values": 0.0}} if _first else None,
        **IMAGENET,
        **_given,
    )
