"""HaloNet: a residual network whose 3x3 convolutions are replaced by halo attention, in all stages or the last ones.

Source: Vaswani, Ramachandran, Srinivas, Parmar, Hechtman, Shlens 2021, arXiv:2103.12731.
"""

from collections.abc import Callable

from torch import Tensor, nn

from mereo.attention.dense import BottleneckAttention
from mereo.attention.local import HaloAttention
from mereo.core.shapes import image_size
from mereo.errors import UsageError, check_choice, check_positive, check_probability
from mereo.layers import ConvNorm, StochasticDepth, linear_rates
from mereo.models.base import VisionModel, grid_of_cells

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
