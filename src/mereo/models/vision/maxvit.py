"""MaxViT: attention inside windows, then attention on a grid over the whole image, in every block at every scale.

Source: Tu et al. 2022, arXiv:2204.01697. "official" is the form of its published weights, "timm" the form of timm's
own weights, which were trained before these were published.
Cost at 224x224: 5.6 G multiply-adds for T; linear in the number of pixels.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core.initialise import start_off_zero
from mereo.core.kernels.kept import kept
from mereo.core.modes import must_be_called
from mereo.core.relative_positions import RelativePositionNetwork, RelativePositions, Window
from mereo.core.shapes import image_size, same_padding
from mereo.core.squash import bounded
from mereo.core.topology import Blocks, Spread
from mereo.errors import UsageError, check_choice, check_positive, check_probability
from mereo.layers import ChannelNorm, FeedForward, InvertedBottleneck, LayerScale, StochasticDepth, linear_rates
from mereo.layers.norms import norm_factors
from mereo.mechanisms.attention import BlockAttention, GridAttention
from mereo.mechanisms.slots import NO_ARGUMENTS, needs_size
from mereo.models.base import VisionModel, check_sides

LARGEST = 1e9
"""Images are clamped to this: the derivative of GELU in its tanh form cubes its input."""


@dataclass(frozen=True)
class Form:
    """Differences between the published networks and timm's.

    Attributes:
        activation: of convolutions; `cell_activation` of the networks after attention.
        padding: of convolutions with stride 2.
        norm_eps, momentum: of batch norms, `momentum` unless the network is given one; `cell_eps` of layer norms.
        bias: whether the stem and the last layer of a bottleneck have biases.
        widen_outputs: whether a bottleneck widens 4 times its outputs, or its inputs.
        squeeze: share of those channels that the gate's narrow layer has.
    """

    activation: Callable[[], nn.Module]
    cell_activation: Callable[[], nn.Module]
    padding: str
    norm_eps: float
    momentum: float
    cell_eps: float
    bias: bool
    widen_outputs: bool
    squeeze: float


_TANH = partial(nn.GELU, approximate="tanh")
FORMS = {
    "official": Form(_TANH, _TANH, "same", 1e-3, 0.01, 1e-5, True, True, 1 / 16),
    "timm": Form(nn.SiLU, nn.GELU, "symmetric", 1e-5, 0.1, 1e-6, False, False, 1 / 16),
}


class Stem(nn.Module):
    """conv(act(norm(conv(x)))), the first convolution with stride 2."""

    def __init__(self, inputs: int, widths: tuple[int, int], form: Form) -> None:
        super().__init__()
        self.padding = form.padding
        self.first = nn.Conv2d(inputs, widths[0], 3, 2, bias=form.bias)
        self.norm = nn.BatchNorm2d(widths[0], form.norm_eps, form.momentum)
        self.activation = form.activation()
        self.second = nn.Conv2d(widths[0], widths[1], 3, padding=1, bias=form.bias)

    def forward(self, images: Tensor) -> Tensor:
        images = bounded(images, LARGEST)
        borders = (1, 1), (1, 1)
        if self.padding == "same":
            borders = same_padding(images.shape[3], 3, 2), same_padding(images.shape[2], 3, 2)
        padded = F.pad(images, (*borders[0], *borders[1]))
        if self.training or not isinstance(self.norm, nn.BatchNorm2d) or must_be_called(self.first, self.norm):
            halved = self.activation(self.norm(self.first(padded)))
        else:
            factor, shift = norm_factors(self.norm)
            weight, bias = self.first.weight, self.first.bias
            shift = shift if bias is None else shift + factor * bias
            folded = (weight * factor[:, None, None, None]).to(weight.dtype)
            halved = self.activation(F.conv2d(padded, folded, shift.to(weight.dtype), 2))
        return self.second(halved)

    def for_inference(self) -> nn.Module:
        fused = nn.utils.fusion.fuse_conv_bn_eval(self.first, self.norm)
        self.first, self.norm = fused, nn.Identity()  # type: ignore[assignment]
        return self


class Exchange(nn.Module):
    """Cells attend to each other, then each goes through a small network: x + A(norm(x)), then x + F(norm(x)).

    Shapes: cells (batch, windows, cells of a window, dim) -> the same.
    """

    def __init__(
        self,
        attention: BlockAttention | GridAttention,
        dim: int,
        form: Form,
        layer_scale: float | None,
        proj_drop: float,
        drop_path: float,
    ) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(dim, form.cell_eps), attention
        self.scale1: nn.Module = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.norm2 = nn.LayerNorm(dim, form.cell_eps)
        self.feed_forward = FeedForward(dim, 4 * dim, proj_drop, form.cell_activation)
        self.scale2: nn.Module = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.drop_path = StochasticDepth(drop_path)

    def forward(self, cells: Tensor, rows: int, columns: int) -> Tensor:
        cells = cells + self.drop_path(self.scale1(self.attention.windows(self.norm1(cells), rows, columns)))
        return cells + self.drop_path(self.scale2(self.feed_forward(self.norm2(cells))))

    def for_inference(self) -> nn.Module:
        for name, layer in (("scale1", self.attention.proj), ("scale2", self.feed_forward.second)):
            if isinstance(scale := getattr(self, name), LayerScale):
                scale.fold_into(layer)
                setattr(self, name, nn.Identity())
        return self


@kept()
def _regrouping(rows: int, columns: int, window: Window) -> Tensor:
    """For each cell of the grid's groups, in order, its place among the cells of the windows."""
    places = torch.empty(rows * columns, dtype=torch.int64, device="cpu")
    places[Blocks((rows, columns), window).tiles().receivers.flatten()] = torch.arange(rows * columns, device="cpu")
    return places[Spread((rows, columns), window).tiles().receivers.flatten()]


def windows_to_grid(cells: Tensor, window: Window, rows: int, columns: int) -> Tensor:
    """Cells of an image cut into windows, as the groups of its grid: (batch, windows, P * Q, dim) -> the same."""
    if (rows, columns) == window:
        return cells
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or cells.device.type != "cpu":
        maps = Blocks((rows, columns), window).join(cells.flatten(0, 1))
        return Spread((rows, columns), window).cut(maps).unflatten(0, (-1, cells.shape[1]))
    order = _regrouping(rows, columns, window)
    return cells.flatten(1, 2).index_select(1, order).view(cells.shape)


class MaxViTBlock(nn.Module):
    """An inverted bottleneck, then attention inside windows, then attention on the grid.

    Between its attentions the map stays cut into windows, and is cut anew once, from windows into groups of the grid.

    Shapes: (batch, inputs, height, width) -> (batch, outputs, height / stride, width / stride).
    """

    def __init__(self, bottleneck: InvertedBottleneck, block: Exchange, grid: Exchange) -> None:
        super().__init__()
        self.bottleneck, self.block, self.grid = bottleneck, block, grid

    def forward(self, x: Tensor) -> Tensor:
        maps = self.bottleneck(x).permute(0, 2, 3, 1)
        (rows, columns), window = maps.shape[1:3], self.grid.attention.window
        count = rows * columns // (window[0] * window[1])
        blocks, groups = Blocks((rows, columns), window), Spread((rows, columns), window)
        cells = self.block(blocks.cut(maps).unflatten(0, (-1, count)), rows, columns)
        cells = self.grid(windows_to_grid(cells, window, rows, columns), rows, columns)
        return groups.join(cells.flatten(0, 1)).permute(0, 3, 1, 2)


class ParallelBlock(nn.Module):
    """Two inverted bottlenecks, then both attentions side by side, each making half of the channels, and one network.

    Shapes: (batch, inputs, height, width) -> (batch, outputs, height / stride, width / stride).
    """

    def __init__(
        self,
        bottlenecks: nn.Sequential,
        block: BlockAttention,
        grid: GridAttention,
        dim: int,
        form: Form,
        layer_scale: float | None,
        proj_drop: float,
        drop_path: float,
    ) -> None:
        super().__init__()
        self.bottlenecks, self.norm1 = bottlenecks, nn.LayerNorm(dim, form.cell_eps)
        self.block, self.grid = block, grid
        self.scale1: nn.Module = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.norm2 = nn.LayerNorm(dim, form.cell_eps)
        self.feed_forward = FeedForward(dim, 4 * dim, proj_drop, form.cell_activation)
        self.scale2: nn.Module = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.drop_path = StochasticDepth(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.bottlenecks(x).permute(0, 2, 3, 1)
        normed = self.norm1(maps)
        both = torch.cat((self.block(normed), self.grid(normed)), -1)
        maps = maps + self.drop_path(self.scale1(both))
        maps = maps + self.drop_path(self.scale2(self.feed_forward(self.norm2(maps))))
        return maps.permute(0, 3, 1, 2)


class MaxViT(VisionModel):
    """Classify with blocks of convolution, attention inside windows and attention on a grid.

    image -> stem -> 4 stages, each halving the map and widening it -> mean over the map -> classifier

    Args:
        num_classes, in_chans, img_size: as in timm; sides must be multiples of 32 (2^(stages + 1)).
        stem_widths: channels of the stem's two convolutions.
        widths, depths: channels and blocks of each stage.
        window_size: rows and columns of a window and of the grid; img_size / 32 by default. Then sides must be
            multiples of 32 times it.
        head_dim: channels of an attention head.
        form: "official" or "timm": see `FORMS`.
        momentum: of the batch norms; by default the form's.
        positions: "table", or "network", which computes the bias of each offset.
        position_hidden: size of that network.
        parallel: both attentions of a block take the same map and share one feed-forward network.
        layer_scale: initial gains of residual branches; None for none.
        head_hidden_size: size of a layer with tanh before the classifier; None for none.
        drop_rate, attn_drop, proj_drop: dropout before the classifier, of couplings, and after attention and inside
            feed-forward networks.
        drop_path_rate: stochastic depth of the last block; it rises linearly from 0 in the first.
        mechanism: name of the mechanism among the wide maps of every bottleneck, one of
            `mereo.list_mechanisms(interface="maps")` or "tokens". Attention in windows and on the grid has no slot:
            the two share one regrouping of the cells.
        mechanism_args: arguments of its constructor that the network does not fill in.

    Shapes: images (batch, in_chans, height, width) -> logits (batch, num_classes).

    Deviates: images are clamped to +-1e9.

    Reference: arXiv:2204.01697
    """

    first_conv = "stem.first"
    fixed_input_size = False

    def __init__(
        self,
        num_classes: int = 1000,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 224,
        *,
        stem_widths: tuple[int, int] = (64, 64),
        widths: tuple[int, ...] = (64, 128, 256, 512),
        depths: tuple[int, ...] = (2, 2, 5, 2),
        window_size: int | tuple[int, int] | None = None,
        head_dim: int = 32,
        form: str = "official",
        momentum: float | None = None,
        positions: str = "table",
        position_hidden: int = 512,
        parallel: bool = False,
        layer_scale: float | None = None,
        head_hidden_size: int | None = None,
        drop_rate: float = 0.0,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        drop_path_rate: float = 0.0,
        mechanism: str = "squeeze_excite",
        mechanism_args: dict[str, Any] = NO_ARGUMENTS,
    ) -> None:
        super().__init__()
        check_choice("form", form, FORMS)
        check_choice("positions", positions, ("table", "network"))
        check_positive(stem_widths=min(stem_widths), widths=min(widths, default=0), depths=min(depths, default=0))
        check_positive(head_dim=head_dim, position_hidden=position_hidden)
        check_probability(drop_rate=drop_rate, attn_drop=attn_drop, proj_drop=proj_drop, drop_path_rate=drop_path_rate)
        if head_hidden_size is not None:
            check_positive(head_hidden_size=head_hidden_size)
        if len(widths) != len(depths):
            raise UsageError(f"widths is {widths} and depths {depths}; give one of each for every stage.")
        self.reduction = 2 ** (len(widths) + 1)
        sides = image_size(img_size)
        self.image_shape = (in_chans, *sides)
        window = self._window_for(sides, window_size)
        self.form, how = form, FORMS[form]
        if momentum is not None:
            how = replace(how, momentum=momentum)
        computed = partial(RelativePositionNetwork, hidden=position_hidden)
        made = RelativePositions if positions == "table" else computed
        rates = iter(linear_rates(drop_path_rate, sum(depths)))
        last = widths[-1]

        def bottleneck(inputs: int, outputs: int, stride: int, rate: float, reduced: int) -> InvertedBottleneck:
            wide = 4 * (outputs if how.widen_outputs else inputs)
            return InvertedBottleneck(
                inputs, outputs, wide, max(int(how.squeeze * wide), 1), stride, activation=how.activation,
                padding=how.padding, bias=how.bias, eps=how.norm_eps, momentum=how.momentum, drop_path=rate,
                mechanism=mechanism, mechanism_args=mechanism_args, size=(sides[0] // reduced, sides[1] // reduced),
            )  # fmt: skip

        def make_block(inputs: int, outputs: int, stride: int, rate: float, reduced: int) -> nn.Module:
            first = bottleneck(inputs, outputs, stride, rate, reduced)
            given: dict[str, Any] = {"positions": made, "attn_drop": attn_drop, "proj_drop": proj_drop}
            given["out_dim"] = outputs // 2 if parallel else outputs
            block = BlockAttention(outputs, window, head_dim, **given)
            grid = GridAttention(outputs, window, head_dim, **given)
            rest = (outputs, how, layer_scale, proj_drop, rate)
            if parallel:
                both = nn.Sequential(first, bottleneck(outputs, outputs, 1, rate, reduced))
                return ParallelBlock(both, block, grid, *rest)
            return MaxViTBlock(first, Exchange(block, *rest), Exchange(grid, *rest))

        self.stem = Stem(in_chans, stem_widths, how)
        self.stages = nn.ModuleList()
        inputs = stem_widths[1]
        self.feature_info = [{"num_chs": inputs, "reduction": 2, "module": "stem"}]
        for index, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            reduced = 2 ** (index + 2)
            blocks = [
                make_block(width if i else inputs, width, 1 if i else 2, next(rates), reduced) for i in range(depth)
            ]
            self.stages.append(nn.Sequential(*blocks))
            info = {"num_chs": width, "reduction": reduced, "module": f"stages.{index}"}
            self.feature_info, inputs = [*self.feature_info, info], width
        self.norm: nn.Module = ChannelNorm(last, how.cell_eps) if head_hidden_size is None else nn.Identity()
        self.pre_logits: nn.Module = nn.Identity()
        if head_hidden_size is not None:
            hidden = nn.Linear(last, head_hidden_size)
            self.pre_logits = nn.Sequential(nn.LayerNorm(last, how.cell_eps), hidden, nn.Tanh())
        self.drop = nn.Dropout(drop_rate)
        self.num_features = head_hidden_size or last
        self.fixed_input_size = needs_size(mechanism)  # type: ignore[misc]
        self._start()
        self.reset_classifier(num_classes)

    def _window_for(self, sides: tuple[int, int], window_size: int | tuple[int, int] | None) -> Window:
        """The windows for images of this size; UsageError if they do not divide its maps."""
        if window_size is None:
            window = (sides[0] // self.reduction, sides[1] // self.reduction)
        else:
            window = image_size(window_size)
        steps = tuple(self.reduction * max(side, 1) if window_size else self.reduction for side in window)
        check_sides(f"img_size is {sides}", sides, (steps[0], steps[1]))
        self.size_step = (self.reduction * window[0], self.reduction * window[1])
        return window

    def _start(self) -> None:
        """Initialise as the official code, normal weights of deviation 0.02, or as timm; biases in both as in timm.

        timm's layers around attention start by Xavier's uniform rule, convolutions by He's normal one over outputs.
        """
        for name, module in self.named_modules():
            if not isinstance(module, nn.Linear | nn.Conv2d) or (self.form == "official" and ".positions." in name):
                continue
            if self.form == "official":
                nn.init.normal_(module.weight, std=0.02)
            elif "bottleneck" in name or name.startswith("stem"):
                places = module.weight[0, 0].numel() / getattr(module, "groups", 1)
                nn.init.normal_(module.weight, std=(2 / (places * module.weight.shape[0])) ** 0.5)
            else:
                nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        start_off_zero(self)

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        return self.stem(inputs) if index == 0 else self.stages[index - 1](inputs)

    def neck(self, maps: list[Tensor]) -> Tensor:
        return self.as_map(maps[-1], norm=True)

    def as_map(self, tensor: Tensor, norm: bool) -> Tensor:
        # The norm belongs to the last stage, the only one of its width.
        if norm and tensor.shape[1] == self.feature_info[-1]["num_chs"]:
            tensor = self.norm(tensor)
        return tensor

    def pool(self, features: Tensor) -> Tensor:
        return self.drop(self.pre_logits(features.mean((2, 3))))

    def make_classifier(self) -> nn.Module:
        head = nn.Linear(self.num_features, self.num_classes)
        nn.init.normal_(head.weight, std=0.02)
        nn.init.zeros_(head.bias)
        return head

    def no_weight_decay(self) -> set[str]:
        return {name for name, _ in self.named_parameters() if ".positions." in name}

    def set_input_size(self, img_size: int | tuple[int, int], window_size: int | tuple[int, int] | None = None) -> None:
        """Take images of another size: windows are of img_size / 32, or as given, and their tables interpolated.

        Images of other multiples of 32 windows need no change.
        """
        sides = image_size(img_size)
        window = self._window_for(sides, window_size)
        for module in self.modules():
            if isinstance(module, BlockAttention | GridAttention):
                module.resize(window)
        self.image_shape = (self.image_shape[0], *sides)
        if hasattr(self, "config"):
            changes = {"img_size": sides, "window_size": None if window_size is None else window}
            self.config = {**self.config, "args": {**self.config["args"], **changes}}
            self.pretrained_cfg = {**self.pretrained_cfg, "input_size": self.image_shape}
