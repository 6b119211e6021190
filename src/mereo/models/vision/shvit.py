"""SHViT: a fast convolutional backbone with one attention head on a part of the channels in its later stages.

Source: Yun, Ro 2024, arXiv:2401.16456, sections 3 and 4, with the widths and starts of the authors' code.
Cost: 241 M to 986 M multiply-adds an image for S1 to S4, most of them in 1x1 convolutions.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mereo.core.initialise import start_linears
from mereo.core.shapes import image_size
from mereo.errors import UsageError, check_positive
from mereo.layers import ConvNorm
from mereo.mechanisms.attention.dense.single_head import SingleHeadAttention
from mereo.mechanisms.gate.squeeze_excite import SqueezeExcite
from mereo.models.base import VisionModel
from mereo.models.layout import Pair, register_layout
from mereo.models.registry import IMAGENET, register_model

_relu = partial(nn.ReLU, inplace=True)


class Residual(nn.Module):
    """x + branch(x). Shapes: as of the branch, whose output has the shape of its input."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.branch(x)
        return branch.add_(x)

    @torch.no_grad()
    def for_inference(self) -> nn.Module:
        """A depthwise convolution with x folded into the centre of its kernels, or this module."""
        convolution = self.branch[0] if isinstance(self.branch, ConvNorm) else None
        if not isinstance(convolution, nn.Conv2d) or convolution.groups != convolution.out_channels:
            return self
        row, column = (side // 2 for side in convolution.kernel_size)
        convolution.weight[:, :, row, column] += 1
        return convolution


def _local(channels: int, norm_weight: float) -> Residual:
    return Residual(ConvNorm(channels, channels, 3, groups=channels, norm_weight=norm_weight))


def _feed_forward(channels: int) -> Residual:
    first = ConvNorm(channels, 2 * channels, activation=_relu)
    return Residual(nn.Sequential(first, ConvNorm(2 * channels, channels, norm_weight=0)))


def _block(channels: int, attended: int | None, key_dim: int) -> nn.Sequential:
    parts: list[tuple[str, nn.Module]] = [("local", _local(channels, 0))]
    if attended is not None:
        parts.append(("attention", Residual(SingleHeadAttention(channels, attended, key_dim))))
    return nn.Sequential(OrderedDict([*parts, ("feed_forward", _feed_forward(channels))]))


def _merging(inputs: int, outputs: int) -> nn.Sequential:
    hidden = 4 * inputs
    squeezed = max(8, (inputs + 4) // 8 * 8)
    if squeezed < 0.9 * inputs:
        squeezed += 8
    return nn.Sequential(
        ConvNorm(inputs, hidden, activation=_relu),
        ConvNorm(hidden, hidden, 3, 2, groups=hidden, activation=_relu),
        SqueezeExcite(hidden, squeezed),
        ConvNorm(hidden, outputs),
    )


def _downsample(inputs: int, outputs: int) -> nn.Sequential:
    before, after = (_local(inputs, 1), _feed_forward(inputs)), (_local(outputs, 1), _feed_forward(outputs))
    return nn.Sequential(*before, _merging(inputs, outputs), *after)


def _stem(inputs: int, outputs: int, strides: Sequence[int]) -> nn.Sequential:
    widths = [inputs, *(outputs // 2**halvings for halvings in reversed(range(len(strides))))]
    last = len(strides) - 1
    return nn.Sequential(
        *(
            ConvNorm(widths[i], widths[i + 1], 3, stride, activation=_relu if i < last else None)
            for i, stride in enumerate(strides)
        )
    )


class NormLinear(nn.Sequential):
    """linear(batchnorm(x)), the classifier. Shapes: (batch, inputs) -> (batch, outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(nn.BatchNorm1d(inputs), start_linears(nn.Linear(inputs, outputs)))

    @torch.no_grad()
    def for_inference(self) -> nn.Linear:
        """One linear layer: linear(norm(x)) = W h x + W (c - m h) + b with h = g / sqrt(v + eps)."""
        norm, linear = self
        assert isinstance(norm, nn.BatchNorm1d) and isinstance(linear, nn.Linear)
        assert norm.running_mean is not None and norm.running_var is not None
        gain = norm.weight / (norm.running_var + norm.eps).sqrt()
        linear.bias.add_(linear.weight @ (norm.bias - norm.running_mean * gain))
        linear.weight.mul_(gain)
        return linear


class SHViT(VisionModel):
    """Classify with convolutions, and with one attention head on about a fifth of the channels in later stages.

    x = stem(image);  blocks: x += dwconv(x),  x += single_head(x),  x += W_2 relu(W_1 x);  scores = W norm(mean x)

    Args:
        num_classes, in_chans, img_size: as in timm; images of any size.
        widths, depths: channels and number of blocks of each stage.
        attended: channels that go through attention in each stage; None or 0 in a stage without attention.
        key_dim: size of queries and keys.
        stem_strides: of the 3x3 convolutions of the stem, whose channels double up to widths[0].
        distillation: whether there is a second head for a teacher's scores; `forward` gives the mean of both.

    Shapes: images (batch, in_chans, height, width) -> scores (batch, num_classes); maps at the product of the stem's
        strides (16 in the paper), at twice and at four times that.

    Deviates: with distillation the mean of the heads also acts in training, where the authors return both; `both_heads`
        gives them.

    Reference: arXiv:2401.16456, figure 4 and table 1.
    """

    first_conv = "stem.0.0"
    classifier_parts = ("head", "distillation_head")
    fixed_input_size = False

    def __init__(
        self,
        num_classes: int = 1000,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 224,
        *,
        widths: tuple[int, ...] = (128, 224, 320),
        depths: tuple[int, ...] = (2, 4, 5),
        attended: tuple[int | None, ...] = (None, 48, 68),
        key_dim: int = 16,
        stem_strides: tuple[int, ...] = (2, 2, 2, 2),
        distillation: bool = False,
    ) -> None:
        super().__init__()
        check_positive(widths=min(widths, default=0), depths=min(depths, default=0), key_dim=key_dim)
        check_positive(stem_strides=min(stem_strides, default=0))
        if not len(widths) == len(depths) == len(attended):
            raise UsageError(
                f"widths are {widths}, depths {depths} and attended {attended}; give one of each for every stage."
            )
        if widths[0] % 2 ** (len(stem_strides) - 1):
            raise UsageError(
                f"widths[0] is {widths[0]} with {len(stem_strides)} convolutions in the stem; it must be a multiple"
                f" of {2 ** (len(stem_strides) - 1)}."
            )
        self.image_shape, self.num_features = (in_chans, *image_size(img_size)), widths[-1]
        self.distillation = distillation
        self.stem = _stem(in_chans, widths[0], stem_strides)
        self.stages = nn.ModuleList()
        for i, (width, depth, part) in enumerate(zip(widths, depths, attended, strict=True)):
            blocks = [_block(width, part or None, key_dim) for _ in range(depth)]
            downsample = _downsample(widths[i - 1], width) if i else nn.Identity()
            self.stages.append(nn.Sequential(OrderedDict(downsample=downsample, blocks=nn.Sequential(*blocks))))
        pixels = torch.Size(stem_strides).numel()
        self.feature_info = [
            {"num_chs": width, "reduction": pixels * 2**i, "module": f"stages.{i}"} for i, width in enumerate(widths)
        ]
        self.reset_classifier(num_classes)

    def pool(self, features: Tensor) -> Tensor:
        return features.mean((2, 3))

    def make_classifier(self) -> nn.Module:
        return NormLinear(self.num_features, self.num_classes)

    def _renew_classifier(self) -> None:
        super()._renew_classifier()
        self.distillation_head = self.make_classifier() if self.distillation and self.num_classes else None

    def both_heads(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Scores for the labels and for a teacher, (batch, classes) each, from the output of `forward_features`."""
        if self.distillation_head is None:
            raise UsageError("distillation is False; create the network with distillation=True for a second head.")
        pooled = self.pool(features)
        return self.head(pooled), self.distillation_head(pooled)

    def classify(self, features: Tensor) -> Tensor:
        if self.distillation_head is None:
            return super().classify(features)
        scores, distilled = self.both_heads(features)
        return (scores + distilled) / 2

    @torch.no_grad()
    def for_inference(self) -> "SHViT":
        """Itself with one head, whose weights are the mean of both, which are linear layers by now."""
        if self.distillation_head is not None:
            for tensor, other in zip(self.head.parameters(), self.distillation_head.parameters(), strict=True):
                tensor.lerp_(other, 0.5)
            self.distillation_head = None
        return self


def _conv_norm(ours: str, theirs: str) -> list[Pair]:
    return [Pair(f"{ours}.0", f"{theirs}.c"), Pair(f"{ours}.1", f"{theirs}.bn")]


def _feed_forward_pairs(ours: str, theirs: str) -> list[Pair]:
    return [*_conv_norm(f"{ours}.branch.0", f"{theirs}.m.pw1"), *_conv_norm(f"{ours}.branch.1", f"{theirs}.m.pw2")]


def _block_pairs(ours: str, theirs: str) -> list[Pair]:
    return [
        *_conv_norm(f"{ours}.local.branch", f"{theirs}.conv.m"),
        Pair(f"{ours}.attention.branch.norm", f"{theirs}.mixer.m.pre_norm"),
        *_conv_norm(f"{ours}.attention.branch.qkv", f"{theirs}.mixer.m.qkv"),
        *_conv_norm(f"{ours}.attention.branch.output", f"{theirs}.mixer.m.proj.1"),
        *_feed_forward_pairs(f"{ours}.feed_forward", f"{theirs}.ffn"),
    ]


def _downsample_pairs(ours: str, theirs: Sequence[str]) -> list[Pair]:
    """`theirs` are the names of its five parts."""
    merging = theirs[2]
    return [
        *_conv_norm(f"{ours}.0.branch", f"{theirs[0]}.m"),
        *_feed_forward_pairs(f"{ours}.1", theirs[1]),
        *_conv_norm(f"{ours}.2.0", f"{merging}.conv1"),
        *_conv_norm(f"{ours}.2.1", f"{merging}.conv2"),
        Pair(f"{ours}.2.2.squeeze", f"{merging}.se.fc1"),
        Pair(f"{ours}.2.2.excite", f"{merging}.se.fc2"),
        *_conv_norm(f"{ours}.2.3", f"{merging}.conv3"),
        *_conv_norm(f"{ours}.3.branch", f"{theirs[3]}.m"),
        *_feed_forward_pairs(f"{ours}.4", theirs[4]),
    ]


def _pairs(
    model: SHViT, block: Callable[[int, int], str], downsample: Callable[[int], Sequence[str]]
) -> Iterator[Pair]:
    for i in range(len(model.stem)):
        yield from _conv_norm(f"stem.{i}", f"patch_embed.{2 * i}")
    for i, stage in enumerate(model.stages):
        if i:
            yield from _downsample_pairs(f"stages.{i}.downsample", downsample(i))
        for j, _ in enumerate(stage.get_submodule("blocks").children()):
            yield from _block_pairs(f"stages.{i}.blocks.{j}", block(i, j))
    for ours, theirs in (("head", "head"), ("distillation_head", "head_dist")):
        yield from (Pair(f"{ours}.0", f"{theirs}.bn"), Pair(f"{ours}.1", f"{theirs}.l"))


def _timm_pairs(model: SHViT) -> Iterator[Pair]:
    return _pairs(
        model,
        lambda i, j: f"stages.{i}.blocks.{j}",
        lambda i: [f"stages.{i}.downsample.{part}" for part in range(5)],
    )


def _official_pairs(model: SHViT) -> Iterator[Pair]:
    """The authors number three modules of downsampling before the blocks of stages 2 and 3."""
    return _pairs(
        model,
        lambda i, j: f"blocks{i + 1}.{j + 3 * (i > 0)}",
        lambda i: [f"blocks{i + 1}.{part}" for part in ("0.0", "0.1", "1", "2.0", "2.1")],
    )


def _arguments(theirs: Any) -> dict[str, Any]:
    stem = [part[0] for part in theirs.patch_embed if list(part.children())]
    mixers = [getattr(stage.blocks[0].mixer, "m", None) for stage in theirs.stages]
    keys = {mixer.qk_dim for mixer in mixers if mixer is not None}
    return {
        "num_classes": theirs.num_classes,
        "in_chans": stem[0].in_channels,
        "img_size": tuple((getattr(theirs, "pretrained_cfg", None) or {}).get("input_size", (3, 224, 224))[1:]),
        "widths": tuple(int(info["num_chs"]) for info in theirs.feature_info),
        "depths": tuple(len(stage.blocks) for stage in theirs.stages),
        "attended": tuple(None if mixer is None else mixer.pdim for mixer in mixers),
        "key_dim": max(keys, default=16),
        "stem_strides": tuple(convolution.stride[0] for convolution in stem),
    }


register_layout("timm", SHViT, _timm_pairs, classes=("SHViT",), arguments=_arguments)
register_layout("official", SHViT, _official_pairs)

_PAPER: dict[str, Any] = {"source": "arXiv:2401.16456", "crop_pct": 0.875, "recipe": "shvit", **IMAGENET}

_register: Callable[..., None] = partial(register_model, module=SHViT, **_PAPER)

_register(
    "shvit_s1",
    summary="SHViT-S1, the smallest.",
    parameters=6_330_808,
    tiny={
        "img_size": 24, "num_classes": 10, "widths": (8, 12, 16), "depths": (1, 1, 1), "attended": (None, 3, 5),
        "key_dim": 3, "stem_strides": (2, 2),
    },
    variants={"distilled": {"distillation": True}},
)  # fmt: skip
_register(
    "shvit_s2",
    summary="SHViT-S2.",
    parameters=11_483_072,
    widths=(128, 308, 448),
    attended=(None, 66, 96),
)
_register(
    "shvit_s3",
    summary="SHViT-S3.",
    parameters=14_245_273,
    widths=(192, 352, 448),
    depths=(3, 5, 5),
    attended=(None, 75, 96),
)
_register(
    "shvit_s4",
    summary="SHViT-S4, for images of 256 x 256.",
    parameters=16_588_484,
    img_size=256,
    widths=(224, 336, 448),
    depths=(4, 7, 6),
    attended=(None, 72, 96),
)
register_model(
    "shvit_cifar",
    SHViT,
    "SHViT for images of 32 x 32: a preset of our own, with one stride in the stem.",
    parameters=1_491_922,
    source="arXiv:2401.16456",
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    recipe="shvit_cifar",
    num_classes=10,
    img_size=32,
    widths=(48, 96, 224),
    depths=(1, 3, 3),
    attended=(None, 20, 48),
    stem_strides=(1, 2),
)
