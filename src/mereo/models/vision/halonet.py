"""HaloNet: a residual network whose 3x3 convolutions are replaced by halo attention, in all stages or the last ones.

Source: Vaswani, Ramachandran, Srinivas, Parmar, Hechtman, Shlens 2021, arXiv:2103.12731.
"""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from mereo.attention.dense import BottleneckAttention
from mereo.attention.local import HaloAttention
from mereo.core.shapes import image_size
from mereo.errors import UsageError, check_choice, check_positive, check_probability
from mereo.layers import ConvNorm, StochasticDepth, linear_rates
from mereo.models.base import VisionModel, grid_of_cells
from mereo.models.layout import Pair, register_layout
from mereo.models.registry import register_model

LARGEST = 1e6
"""Pixels beyond are clamped: the scores of attention are products of two features, and must fit float32."""
STEMS = {"7x7": (7, 1), "tiered": (3, 3)}
"""Of each stem: the side of its filters and the number of its convolutions."""
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: nn.ReLU(inplace=True),
    "silu": lambda: nn.SiLU(inplace=True),
}


class HaloNetBlock(nn.Module):
    """activation(shortcut(x) + expand(mix(reduce(x)))): a bottleneck around a convolution or attention.

    Args:
        inputs, width, outputs: channels.
        mix: what exchanges between cells: width -> `mixed` channels, at a stride.
        stride: of `mix`, and so of the shortcut.
        drop_path: rate of stochastic depth.

    Shapes: (batch, inputs, rows, columns) -> (batch, outputs, rows / stride, columns / stride), rounded up.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        mix: nn.Module,
        mixed: int,
        outputs: int,
        stride: int,
        activation: Callable[[], nn.Module],
        drop_path: float,
    ) -> None:
        super().__init__()
        self.shortcut = nn.Identity() if inputs == outputs and stride == 1 else ConvNorm(inputs, outputs, 1, stride)
        self.reduce = ConvNorm(inputs, width, activation=activation)
        self.mix = mix
        self.expand = ConvNorm(mixed, outputs, norm_weight=0.0)
        self.drop_path = StochasticDepth(drop_path)
        self.activation = activation()

    def forward(self, maps: Tensor) -> Tensor:
        branch: Tensor = self.drop_path(self.expand(self.mix(self.reduce(maps))))
        out: Tensor = self.activation(branch.add_(self.shortcut(maps)))
        return out


class HaloNetStem(nn.Sequential):
    """Convolutions of images, whose pixels are clamped before."""

    def forward(self, images: Tensor) -> Tensor:
        maps = images.clamp(-LARGEST, LARGEST)
        for convolution in self:
            maps = convolution(maps)
        return maps


class HaloNet(VisionModel):
    """A residual network with halo attention in place of some or all of its 3x3 convolutions.

    Args:
        num_classes, in_chans, img_size: as in timm. Images may have any size; where blocks do not divide a map, it is
            padded inside the attention.
        stem: "7x7", one convolution, or "tiered", three of 3 x 3.
        stem_width: channels of the stem.
        stem_pool: max pooling after the stem; without it, the last convolution of a tiered stem has a stride of 2.
        layers: of each stage a letter for each block: "h" halo attention, "b" bottleneck attention to the whole map,
            "c" a 3x3 convolution. The tables of "b" are for maps of `img_size`, and interpolated for others.
        widths: channels inside the blocks of each stage.
        expansion: channels between the blocks, as a multiple of the widths (r_b of the paper).
        value_ratio: channels of the values, likewise (r_v).
        heads: of the attention of each stage.
        block, halo: see `HaloAttention`.
        mask_padding: leave cells beyond the image out of the attention.
        final_width: channels of a last 1x1 convolution; 0 for none (d_f).
        activation: "relu" or "silu".
        drop_rate: dropout before the classifier.
        drop_path_rate: stochastic depth of the last block; it rises linearly.
    """

    first_conv = "stem.0.0"
    fixed_input_size = False

    def __init__(
        self,
        num_classes: int = 1000,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 256,
        *,
        stem: str = "7x7",
        stem_width: int = 64,
        stem_pool: bool = True,
        layers: tuple[str, ...] = ("hhh", "hhh", "hhhhhhh", "hhh"),
        widths: tuple[int, ...] = (64, 128, 256, 512),
        expansion: float = 1.0,
        value_ratio: float = 1.0,
        heads: tuple[int, ...] = (4, 8, 8, 8),
        block: int = 8,
        halo: int = 3,
        mask_padding: bool = False,
        final_width: int = 0,
        activation: str = "relu",
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        check_choice("stem", stem, STEMS)
        check_choice("activation", activation, ACTIVATIONS)
        check_positive(stem_width=stem_width, expansion=expansion, value_ratio=value_ratio)
        if not stem_pool and stem == "7x7":
            raise UsageError("stem_pool is False with stem '7x7'; use 'tiered', whose last convolution can be strided.")
        check_probability(drop_rate=drop_rate, drop_path_rate=drop_path_rate)
        _check_stages(layers, widths, heads)
        self.image_shape = (in_chans, *image_size(img_size))
        self.drop_rate = drop_rate
        act = ACTIVATIONS[activation]

        kernel, count = STEMS[stem]
        stem_widths = [stem_width] if count == 1 else [3 * stem_width // 8, stem_width // 2, stem_width]
        strides = [2] + [1] * (count - 1 if stem_pool else count - 2) + [2] * (not stem_pool)
        parts: list[nn.Module] = [
            ConvNorm(inputs, outputs, kernel, stride, activation=act)
            for inputs, outputs, stride in zip([in_chans, *stem_widths[:-1]], stem_widths, strides, strict=True)
        ]
        # The map at half the size of the image is the first feature.
        kept = len(parts) if stem_pool else len(parts) - 1
        self.stem = HaloNetStem(*parts[:kept])
        self.enter = nn.MaxPool2d(3, 2, 1) if stem_pool else parts[-1]
        self.feature_info = [{"num_chs": stem_widths[kept - 1], "reduction": 2, "module": "stem"}]

        rates = iter(linear_rates(drop_path_rate, sum(map(len, layers))))
        self.stages, inputs = nn.ModuleList(), stem_width
        for i, (kinds, width) in enumerate(zip(layers, widths, strict=True)):
            outputs, blocks = int(width * expansion), []
            for j, kind in enumerate(kinds):
                stride = 2 if i > 0 and j == 0 else 1
                mixed = int(width * value_ratio) if kind == "h" else width
                mix: nn.Module = ConvNorm(width, width, 3, stride, activation=act)
                if kind != "c":
                    attention: nn.Module
                    if kind == "b":
                        size = tuple(-(-side * stride // 2 ** (i + 2)) for side in self.image_shape[1:])
                        attention = BottleneckAttention(width, heads[i], size=(size[0], size[1]), stride=stride)
                    else:
                        attention = HaloAttention(
                            width, heads[i], key_dim=width // heads[i], value_dim=mixed // heads[i], block=block,
                            halo=halo, stride=stride, mask_padding=mask_padding,
                        )  # fmt: skip
                    mix = nn.Sequential(attention, nn.BatchNorm2d(mixed), act())
                blocks.append(HaloNetBlock(inputs, width, mix, mixed, outputs, stride, act, next(rates)))
                inputs = outputs
            self.stages.append(nn.Sequential(*blocks))
            last = {"num_chs": inputs, "reduction": 2 ** (i + 2), "module": f"stages.{i}"}
            self.feature_info.append(last)
        self.num_features = final_width or inputs
        self.final = ConvNorm(inputs, final_width, activation=act) if final_width else nn.Identity()
        self.feature_info[-1] = {**last, "num_chs": self.num_features, "module": "final"}
        self._initialise()
        self.reset_classifier(num_classes)

    def _initialise(self) -> None:
        attended = {
            id(p) for m in self.modules() if isinstance(m, HaloAttention | BottleneckAttention) for p in m.parameters()
        }
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and id(module.weight) not in attended:
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def place_couplings(self, height: int, width: int) -> None:
        for number, stage in enumerate(self.stages):
            for module in stage.modules():
                if isinstance(module, HaloAttention | BottleneckAttention):
                    step = 2 ** (number + 2) // module.stride
                    queries = step * module.step if isinstance(module, HaloAttention) else step
                    module.coupling.senders = grid_of_cells(height, width, step)
                    module.coupling.receivers = grid_of_cells(height, width, queries)

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        if index == 0:
            stem: Tensor = self.stem(inputs)
            return stem
        maps: Tensor = self.stages[index - 1](self.enter(inputs) if index == 1 else inputs)
        return self.final(maps) if index == len(self.stages) else maps

    def pool(self, features: Tensor) -> Tensor:
        return features.mean((2, 3))

    def make_classifier(self) -> nn.Module:
        linear = nn.Linear(self.num_features, self.num_classes)
        nn.init.normal_(linear.weight, std=0.01)
        nn.init.zeros_(linear.bias)
        return linear

    def classify(self, features: Tensor) -> Tensor:
        dropped = nn.functional.dropout(self.pool(features), self.drop_rate, self.training)
        scores: Tensor = self.head(dropped)
        return scores


def _check_stages(layers: tuple[str, ...], widths: tuple[int, ...], heads: tuple[int, ...]) -> None:
    if not len(layers) == len(widths) == len(heads) > 0:
        raise UsageError(
            f"layers is {layers}, widths {widths} and heads {heads}; each must have an entry for every stage."
        )
    for stage, kinds in enumerate(layers):
        if not isinstance(kinds, str) or not kinds or set(kinds) - set("hbc"):
            raise UsageError(
                f"layers[{stage}] is {kinds!r}; give a letter for each block, 'h', 'b' or 'c', such as 'ch'."
            )
    check_positive(**{f"widths[{i}]": width for i, width in enumerate(widths)})
    check_positive(**{f"heads[{i}]": count for i, count in enumerate(heads)})
    for kinds, width, count in zip(layers, widths, heads, strict=True):
        if set(kinds) & set("hb") and width % count:
            raise UsageError(f"heads has {count} for a width of {width}; give a divisor.")


# --- timm's networks ------------------------------------------------------------------------------------------------


def _timm_pairs(model: HaloNet) -> Iterator[Pair]:
    def conv_norm(ours: str, theirs: str) -> Iterator[Pair]:
        yield Pair(f"{ours}.0", f"{theirs}.conv")
        yield Pair(f"{ours}.1", f"{theirs}.bn")

    for i in range(len(model.stem)):
        yield from conv_norm(f"stem.{i}", f"stem.conv{i + 1}")
    yield from conv_norm("enter", f"stem.conv{len(model.stem) + 1}")
    for name, block in model.stages.named_modules(prefix="stages"):
        if not isinstance(block, HaloNetBlock):
            continue
        for ours, theirs in (("shortcut", "shortcut"), ("reduce", "conv1_1x1"), ("expand", "conv3_1x1")):
            yield from conv_norm(f"{name}.{ours}", f"{name}.{theirs}")
        if not isinstance(block.mix, ConvNorm):
            names = {"query": "q", "key_value": "kv", "qkv": "qkv"}
            names |= {"rows": "pos_embed.height_rel", "columns": "pos_embed.width_rel"}
            yield from (Pair(f"{name}.mix.0.{ours}", f"{name}.self_attn.{theirs}") for ours, theirs in names.items())
            yield Pair(f"{name}.mix.1", f"{name}.post_attn")
        else:
            yield from conv_norm(f"{name}.mix", f"{name}.conv2_kxk")
    yield from conv_norm("final", "final_conv")
    yield Pair("head", "head.fc")


_ATTENTION = {"HaloAttn": "h", "BottleneckAttn": "b"}


def _one(what: str, values: set[Any]) -> Any:
    """The single value of a set."""
    if len(values) != 1:
        raise UsageError(f"the ByobNet has {what} {sorted(map(str, values))}; HaloNet has one for all its blocks.")
    return values.pop()


def _refuse_unless(condition: bool, what: str) -> None:
    if not condition:
        raise UsageError(
            f"the ByobNet {what}; of timm's ByobNets mereo converts those of plain bottlenecks and halo attention,"
            " such as halonet26t, halonet50ts and halonet_h1."
        )


def _letter(block: Any) -> str:
    """The kind of a block of timm's; UsageError if it is none of ours."""
    kind = type(block).__name__
    _refuse_unless(kind in ("BottleneckBlock", "SelfAttnBlock"), f"has a {kind}")
    _refuse_unless(block.shortcut is not None, "has a block without a shortcut")
    _refuse_unless(not isinstance(block.act, nn.Identity), "has a block without a last activation")
    if kind == "SelfAttnBlock":
        attention = type(block.self_attn).__name__
        _refuse_unless(attention in _ATTENTION, f"attends by {attention}")
        _refuse_unless(isinstance(block.conv2_kxk, nn.Identity), "has a convolution before its attention")
        _refuse_unless(not block.self_attn.scale_pos_embed, "scales its scores of positions")
        return _ATTENTION[attention]
    extra = (block.conv2b_kxk, block.attn, block.attn_last)
    _refuse_unless(all(isinstance(part, nn.Identity) for part in extra), "has channel attention or more convolutions")
    _refuse_unless(block.conv2_kxk.conv.groups == 1, "has convolutions in groups")
    return "c"


def _timm_arguments(source: Any) -> dict[str, Any]:
    parts = dict(source.stem.named_children())
    pool = parts.pop("pool", None)
    _refuse_unless(all(hasattr(part, "conv") for part in parts.values()), "has a stem without norms")
    stem = [part.conv for part in parts.values()]
    kernel, strides = stem[0].kernel_size[0], [conv.stride[0] for conv in stem]
    _refuse_unless((kernel, len(stem)) in STEMS.values(), f"has a stem of {len(stem)} {kernel}x{kernel} convolutions")
    pooled = isinstance(pool, nn.MaxPool2d) and pool.kernel_size == 3 and strides[1:] == [1] * (len(stem) - 1)
    _refuse_unless(pooled or (pool is None and strides == [2, 1, 2]), "has a stem with other strides or pooling")
    layers = tuple("".join(_letter(block) for block in stage) for stage in source.stages)
    _refuse_unless(any("h" in kinds for kinds in layers), "has no halo attention")
    blocks = [block for stage in source.stages for block in stage]
    attention = [block.self_attn for block in blocks if _letter(block) == "h"]
    widths = tuple(stage[0].conv1_1x1.conv.out_channels for stage in source.stages)
    ratios = {b.conv3_1x1.conv.out_channels / b.conv1_1x1.conv.out_channels for b in blocks}
    heads = [
        _one("numbers of heads", {b.self_attn.num_heads for b in stage if hasattr(b, "self_attn")} or {1})
        for stage in source.stages
    ]
    act = type(blocks[0].act).__name__.lower()
    _refuse_unless(act in ACTIVATIONS, f"has the activation {act}")
    final = source.final_conv
    configuration = getattr(source, "pretrained_cfg", None) or {}
    return {
        "num_classes": source.num_classes,
        "in_chans": stem[0].in_channels,
        "img_size": tuple(configuration.get("input_size", (3, 256, 256))[1:]),
        "stem": next(name for name, value in STEMS.items() if value == (kernel, len(stem))),
        "stem_width": stem[-1].out_channels,
        "stem_pool": pooled,
        "layers": layers,
        "widths": widths,
        "expansion": float(_one("ratios of outputs", ratios)),
        "value_ratio": float(_one("ratios of values", {m.dim_out_v / m.q.in_channels for m in attention})),
        "heads": tuple(heads),
        "block": _one("blocks of", {m.block_size for m in attention}),
        "halo": _one("halos of", {m.halo_size for m in attention}),
        "mask_padding": False,
        "final_width": 0 if isinstance(final, nn.Identity) else final.conv.out_channels,
        "activation": act,
        "drop_rate": float(source.drop_rate),
        "drop_path_rate": float(getattr(blocks[-1].drop_path, "drop_prob", 0.0) or 0.0),
    }


register_layout("timm", HaloNet, _timm_pairs, classes=("ByobNet",), arguments=_timm_arguments)

_IMAGENET: dict[str, Any] = {
    "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "interpolation": "bicubic",
    "source": "arXiv:2103.12731",
}  # fmt: skip


def _preset(
    name: str,
    summary: str,
    parameters: int,
    third: int,
    ratios: tuple[float, float],
    **more: Any,
) -> None:
    """Register a network with attention in all stages, `third` blocks in the third, and (r_v, r_b)."""
    layers = ("hhh", "hhh", "h" * third, "hhh")
    register_model(
        name, HaloNet, summary, parameters=parameters, layers=layers, value_ratio=ratios[0], expansion=ratios[1],
        crop_pct=0.95, recipe="halonet", **_IMAGENET, **more,
    )  # fmt: skip


_preset(
    "halonet_h0", "HaloNet-H0: halo attention in all stages, 5.5 million parameters.", 5_502_248, 7, (1.0, 0.5),
    tiny={
        "img_size": 32, "stem_width": 8, "widths": (8, 8, 8, 16), "layers": ("h", "h", "h", "h"), "heads": (2, 2, 2, 2),
        "block": 2, "halo": 1, "num_classes": 5,
    },
    variants={
        "tiered": {"stem": "tiered", "layers": ("c", "ch"), "widths": (8, 8), "heads": (1, 2), "expansion": 2.0,
                   "activation": "silu", "final_width": 12, "mask_padding": True, "value_ratio": 2.0},
        "bottleneck attention": {"stem": "tiered", "stem_pool": False, "layers": ("c", "bb"), "widths": (8, 8),
                                 "heads": (1, 2), "expansion": 2.0},
    },
)  # fmt: skip
_preset(
    "halonet_h1", "HaloNet-H1 as timm has it, with 8 heads in every stage.", 8_100_056, 10, (1.0, 1.0),
    heads=(8, 8, 8, 8),
)  # fmt: skip
_preset("halonet_h1_heads4", "HaloNet-H1 with 4 heads in the first stage, as in the paper.", 8_101_352, 10, (1.0, 1.0))
_preset("halonet_h2", "HaloNet-H2, 9.4 million parameters.", 9_405_608, 11, (1.0, 1.25))
_preset(
    "halonet_h3", "HaloNet-H3 for images of 320 pixels.", 11_842_792, 12, (1.0, 1.5), img_size=320, block=10,
    final_width=1024,
)  # fmt: skip
_preset(
    "halonet_h4", "HaloNet-H4 for images of 384 pixels.", 19_103_464, 12, (1.0, 3.0), img_size=384, block=12, halo=2,
    final_width=1280,
)  # fmt: skip
_preset(
    "halonet_h5", "HaloNet-H5 for images of 448 pixels.", 30_718_952, 23, (2.5, 2.0), img_size=448, block=14, halo=2,
    final_width=1536,
)  # fmt: skip
_preset(
    "halonet_h6", "HaloNet-H6 for images of 512 pixels.", 43_458_280, 24, (3.0, 2.75), img_size=512, halo=4,
    final_width=1536,
)  # fmt: skip
_preset(
    "halonet_h7", "HaloNet-H7 for images of 600 pixels; blocks of 10 do not divide its maps, which are padded.",
    67_434_728, 26, (4.0, 3.5), img_size=600, block=10, final_width=2048,
)  # fmt: skip
register_model(
    "halonet26t",
    HaloNet,
    "A tiered ResNet-26 with halo attention in its last two stages.",
    parameters=12_480_288,
    recipe="halonet",
    crop_pct=0.95,
    stem="tiered",
    layers=("cc", "cc", "ch", "hh"),
    expansion=4.0,
    heads=(8, 8, 8, 8),
    halo=2,
    **_IMAGENET,
)
register_model(
    "halonet50ts",
    HaloNet,
    "A tiered ResNet-50 with SiLU and halo attention in every fourth block of its second stage and then every second.",
    parameters=22_733_280,
    recipe="halonet",
    crop_pct=0.94,
    stem="tiered",
    layers=("ccc", "ccch", "chchch", "chc"),
    expansion=4.0,
    heads=(8, 4, 8, 8),
    activation="silu",
    **_IMAGENET,
)
register_model(
    "halo2botnet50ts_256",
    HaloNet,
    "A tiered ResNet-50 with SiLU, halo attention in two stages and bottleneck attention in the last.",
    parameters=22_635_360,
    recipe="halonet",
    crop_pct=0.95,
    aliases=("halo2botnet50ts",),
    stem="tiered",
    stem_pool=False,
    layers=("ccc", "chch", "chchch", "cbc"),
    expansion=4.0,
    heads=(8, 8, 8, 4),
    activation="silu",
    **_IMAGENET,
)
