"""HaloNet: a residual network whose 3x3 convolutions are replaced by halo attention, in all stages or the last ones.

Sources: Vaswani, Ramachandran, Srinivas, Parmar, Hechtman, Shlens 2021, arXiv:2103.12731; Dollar, Singh, Girshick 2021,
arXiv:2103.06877 (RegNet-Z: inverted bottlenecks).
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from mereo.core.shapes import image_size
from mereo.core.squash import bounded
from mereo.errors import UsageError, check_choice, check_positive, check_probability
from mereo.layers import ConvNorm, StochasticDepth, linear_rates
from mereo.mechanisms.attention.dense import BottleneckAttention, LambdaAttention
from mereo.mechanisms.attention.local import HaloAttention
from mereo.mechanisms.gate import EfficientChannelGate, SqueezeExcite
from mereo.models.base import VisionModel, grid_of_cells

LARGEST = 1e6
"""Pixels beyond are clamped: the scores of attention are products of two features, and must fit float32."""
STEMS = {"7x7": (7, 1), "tiered": (3, 3), "3x3": (3, 1)}
"""For each stem, the side of its filters and the number of its convolutions."""
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: nn.ReLU(inplace=True),
    "silu": lambda: nn.SiLU(inplace=True),
}
GATES = ("none", "squeeze_excite", "efficient_channel")


def squeezed(channels: int, ratio: float) -> int:
    """Hidden channels of squeeze and excite: the multiple of 8 next to channels * ratio, at least 8."""
    return max(8, int(channels * ratio + 4) // 8 * 8)


class HaloNetBlock(nn.Module):
    """activation(shortcut(x) + expand(gate(mix(reduce(x))))): a bottleneck around a convolution or attention.

    Args:
        inputs, width, outputs: channels.
        mix: the module that mixes cells: width -> `mixed` channels, at a stride.
        stride: of `mix`, and so of the shortcut.
        drop_path: rate of stochastic depth.
        gate: of the output channels of `mix`.
        inverted: no activation at the end, and no shortcut if shapes change.

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
        *,
        gate: nn.Module | None = None,
        inverted: bool = False,
    ) -> None:
        super().__init__()
        self.shortcut: nn.Module | None = nn.Identity()
        if inputs != outputs or stride != 1:
            self.shortcut = None if inverted else ConvNorm(inputs, outputs, 1, stride)
        self.reduce = ConvNorm(inputs, width, activation=activation)
        self.mix = mix
        self.gate = nn.Identity() if gate is None else gate
        # Where there is a shortcut, the branch starts as nothing.
        self.expand = ConvNorm(mixed, outputs, norm_weight=float(self.shortcut is None))
        self.drop_path = StochasticDepth(drop_path)
        self.activation = nn.Identity() if inverted else activation()

    def forward(self, maps: Tensor) -> Tensor:
        branch: Tensor = self.drop_path(self.expand(self.gate(self.mix(self.reduce(maps)))))
        return self.activation(branch if self.shortcut is None else branch.add_(self.shortcut(maps)))


class HaloNetStem(nn.Sequential):
    """Convolutions of images, whose pixels are clamped before."""

    def forward(self, images: Tensor) -> Tensor:
        maps = bounded(images, LARGEST)
        for convolution in self:
            maps = convolution(maps)
        return maps


class HaloNet(VisionModel):
    """A residual network with halo attention in place of some or all of its 3x3 convolutions.

    Args:
        num_classes, in_chans, img_size: as in timm. Images may have any size; where blocks do not divide a map, it is
            padded inside the attention.
        stem: "7x7" or "3x3", one convolution, or "tiered", three of 3 x 3.
        stem_width: channels of the stem.
        stem_pool: max pooling after the stem; without it, the last convolution of a tiered stem has a stride of 2, or
            after a stem of one convolution the first block.
        layers: of each stage a letter for each block: "h" halo attention, "b" bottleneck attention to the whole map,
            "l" lambda attention, "c" a 3x3 convolution. The tables of "b" are for maps of `img_size`, and interpolated
            for others.
        widths: channels inside the blocks of each stage.
        expansion: channels between the blocks, as a multiple of the widths (r_b of the paper).
        outputs: channels between the blocks of each stage, in place of `expansion`.
        inverted: blocks of RegNet-Z: without an activation after the sum, without a shortcut where shapes change, and
            inside with width / output times the channels of their inputs, so that the first of a stage is narrower.
        group_size: channels of a group of the 3x3 convolutions; 0 for no groups.
        gate: of the channels after the 3x3 convolutions: "none", "squeeze_excite" or "efficient_channel".
        gate_ratio: hidden channels of squeeze and excite, as a share of its channels.
        value_ratio: channels of the values, as a multiple of the widths (r_v).
        heads: of the attention of each stage.
        key_ratios: of each stage, channels of queries of halo and lambda attention as a multiple of the widths; 1 by
            default.
        scope: side of the square in which positions count in lambda attention.
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
        outputs: tuple[int, ...] = (),
        inverted: bool = False,
        group_size: int = 0,
        gate: str = "none",
        gate_ratio: float = 1 / 16,
        value_ratio: float = 1.0,
        heads: tuple[int, ...] = (4, 8, 8, 8),
        key_ratios: tuple[float, ...] = (),
        scope: int = 23,
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
        check_choice("gate", gate, GATES)
        check_positive(stem_width=stem_width, expansion=expansion, value_ratio=value_ratio, gate_ratio=gate_ratio)
        check_probability(drop_rate=drop_rate, drop_path_rate=drop_path_rate)
        between = tuple(outputs) or tuple(int(width * expansion) for width in widths)
        _check_stages(layers, widths, heads, between, key_ratios)
        self.image_shape = (in_chans, *image_size(img_size))
        self.drop_rate = drop_rate
        act = ACTIVATIONS[activation]
        first, entry = self._make_stem(in_chans, stem, stem_width, stem_pool, act)
        features: list[dict[str, Any]] = [{"num_chs": first, "reduction": 2, "module": "stem"}]

        rates = iter(linear_rates(drop_path_rate, sum(map(len, layers))))
        self.stages, inputs = nn.ModuleList(), stem_width
        for i, (kinds, width, outer) in enumerate(zip(layers, widths, between, strict=True)):
            blocks = []
            for j, kind in enumerate(kinds):
                stride = entry if i + j == 0 else 2 if j == 0 else 1
                inner = inputs * width // outer if inverted else width
                mixed = int(inner * value_ratio) if kind == "h" else inner
                _check_block(f"layers[{i}]", kind, inner, mixed, heads[i], group_size)
                mix: nn.Module
                gating: nn.Module | None = None
                if kind == "c":
                    groups = inner // group_size if group_size else 1
                    mix = ConvNorm(inner, inner, 3, stride, groups=groups, activation=act)
                    if gate == "squeeze_excite":
                        gating = SqueezeExcite(inner, squeezed(inner, gate_ratio))
                    elif gate == "efficient_channel":
                        gating = EfficientChannelGate(inner)
                else:
                    attention: nn.Module
                    keys = round(inner * (key_ratios[i] if key_ratios else 1) / heads[i])
                    if kind == "l":
                        attention = LambdaAttention(inner, heads[i], key_dim=keys, scope=scope, stride=stride)
                    elif kind == "b":
                        size = tuple(-(-side * stride // 2 ** (i + 2)) for side in self.image_shape[1:])
                        attention = BottleneckAttention(inner, heads[i], size=(size[0], size[1]), stride=stride)
                    else:
                        attention = HaloAttention(
                            inner, heads[i], key_dim=keys, value_dim=mixed // heads[i], block=block, halo=halo,
                            stride=stride, mask_padding=mask_padding,
                        )  # fmt: skip
                    mix = nn.Sequential(attention, nn.BatchNorm2d(mixed), act())
                block_args = (inputs, inner, mix, mixed, outer, stride, act, next(rates))
                blocks.append(HaloNetBlock(*block_args, gate=gating, inverted=inverted))
                inputs = outer
            self.stages.append(nn.Sequential(*blocks))
            features.append({"num_chs": inputs, "reduction": 2 ** (i + 2), "module": f"stages.{i}"})
        self.num_features = final_width or inputs
        self.final = ConvNorm(inputs, final_width, activation=act) if final_width else nn.Identity()
        features[-1] |= {"num_chs": self.num_features, "module": "final"}
        self.feature_info = features
        self._initialise()
        self.reset_classifier(num_classes)

    def _make_stem(
        self, in_chans: int, stem: str, stem_width: int, stem_pool: bool, act: Callable[[], nn.Module]
    ) -> tuple[int, int]:
        """Make `stem` and `enter`, and return the channels of the stem and the stride of the first block.

        The map at half the size of the image is the first feature: the output of `stem`.
        """
        kernel, count = STEMS[stem]
        widths = [stem_width] if count == 1 else [3 * stem_width // 8, stem_width // 2, stem_width]
        strided = count > 1 and not stem_pool
        strides = [2] + [1] * (count - 1 - strided) + [2] * strided
        parts: list[nn.Module] = [
            ConvNorm(inputs, outputs, kernel, stride, activation=act)
            for inputs, outputs, stride in zip([in_chans, *widths[:-1]], widths, strides, strict=True)
        ]
        kept = count - strided
        self.stem = HaloNetStem(*parts[:kept])
        self.enter = nn.MaxPool2d(3, 2, 1) if stem_pool else parts[-1] if strided else nn.Identity()
        return widths[kept - 1], 1 if stem_pool or strided else 2

    def _initialise(self) -> None:
        kinds = HaloAttention | BottleneckAttention | LambdaAttention
        attended = {id(p) for m in self.modules() if isinstance(m, kinds) for p in m.parameters()}
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
            return self.stem(inputs)
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
        return self.head(dropped)


def _check_stages(
    layers: tuple[str, ...],
    widths: tuple[int, ...],
    heads: tuple[int, ...],
    outputs: tuple[int, ...],
    key_ratios: tuple[float, ...],
) -> None:
    if not len(layers) == len(widths) == len(heads) > 0:
        raise UsageError(
            f"layers is {layers}, widths {widths} and heads {heads}; each must have an entry for every stage."
        )
    for name, values in (("outputs", outputs), ("key_ratios", key_ratios)):
        if values and len(values) != len(layers):
            raise UsageError(f"{name} is {values}; it must have an entry for each of {len(layers)} stages.")
    for stage, kinds in enumerate(layers):
        if not isinstance(kinds, str) or not kinds or set(kinds) - set("hblc"):
            raise UsageError(
                f"layers[{stage}] is {kinds!r}; give a letter for each block, 'h', 'b', 'l' or 'c', such as 'ch'."
            )
    for name, values in (("widths", widths), ("heads", heads), ("outputs", outputs), ("key_ratios", key_ratios)):
        check_positive(**{f"{name}[{i}]": value for i, value in enumerate(values)})


def _check_block(where: str, kind: str, inner: int, mixed: int, heads: int, group_size: int) -> None:
    """UsageError unless heads divide the channels of attention, and groups the channels of convolution."""
    if inner < 1:
        raise UsageError(f"{where} has a block of {inner} channels; give wider widths or narrower outputs.")
    if kind in "hbl" and (inner % heads or mixed % heads):
        raise UsageError(f"heads has {heads} for a width of {inner} and values of {mixed}; give a divisor of both.")
    if kind == "c" and group_size and (group_size < 0 or inner % group_size):
        raise UsageError(f"group_size is {group_size} for a width of {inner}; give a divisor, or 0 for no groups.")
