"""Efficient-CapsNet: a small convolutional stem, one depthwise convolution, and self-attention routing.

Source: Mazzia, Salvetti, Chiaberge 2021, arXiv:2101.12491, and the authors' code.
Cost at 28x28: 30 M multiply-adds an image against 201 M for CapsNet.
"""

from functools import partial
from math import prod

import torch
from torch import Tensor, nn

from mereo.core import lengths
from mereo.core.shapes import conv_out, image_size
from mereo.errors import UsageError, check_choice, check_positive
from mereo.layers.capsules import DepthwisePrimaryCapsules, FullyConnectedDecoder, UpsamplingDecoder
from mereo.mechanisms.routing import SelfAttentionRouting
from mereo.models.capsule_classifier import CapsuleClassifier
from mereo.models.registry import register_model

Stem = tuple[tuple[int, int, int], ...]
MNIST_STEM: Stem = ((5, 32, 1), (3, 64, 1), (3, 64, 1), (3, 128, 2))
MULTIMNIST_STEM: Stem = ((5, 32, 1), (3, 64, 1), (3, 64, 2), (3, 128, 2))
SMALLNORB_STEM: Stem = ((7, 32, 2), (3, 64, 1), (3, 64, 1), (3, 128, 2))
STEM_STEP = 3
"""Modules of a convolution of the stem: itself, its norm and its activation."""


class _InstanceNorm(nn.InstanceNorm2d):
    """PyTorch's, which fails for an empty batch."""

    def forward(self, inputs: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and not len(inputs):
            return inputs * self.weight[:, None, None] + self.bias[:, None, None]
        return super().forward(inputs)


class EfficientCapsNet(CapsuleClassifier):
    """Capsules from one depthwise convolution, routed in one pass.

    image -> unpadded convolutions, ReLU, BN -> one number a channel -> 16 capsules -> self-attention routing

    Args:
        num_classes, in_chans, img_size: as in timm; the image must survive the stem's unpadded convolutions.
        stem: (kernel, channels, stride) of each convolution.
        primary_dim: pose of a primary capsule; there are channels / primary_dim of them.
        class_dim: pose of a class capsule.
        norm: "batch" or "instance".
        norm_first: normalise before the activation, as a public PyTorch port does; the authors do it after.
        negative_slope: of the activation, 0 for ReLU.
        decoder: "full" (linear layers), "upsampling" or "none".
        init: "default", or "official": instance norms start uniform in +-0.05.

    Shapes: images (batch, in_chans, height, width) -> lengths (batch, num_classes).

    Deviates: the depthwise filter always covers the whole last map; the official MultiMNIST network strides a 5x5
        filter over a 6x6 map, which reads the same 5x5 numbers, so there `primary_kernel` is 5.

    Reference: arXiv:2101.12491. The network and both decoders equal loops written from the authors' code, which was not
        run; their published weights for smallNORB fit every tensor.
    """

    first_conv = "stem.0"

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 1,
        img_size: int | tuple[int, int] = 28,
        *,
        stem: Stem = MNIST_STEM,
        primary_kernel: int | None = None,
        primary_dim: int = 8,
        class_dim: int = 16,
        norm: str = "batch",
        norm_first: bool = False,
        negative_slope: float = 0.0,
        decoder: str = "full",
        init: str = "default",
    ) -> None:
        super().__init__()
        check_choice("norm", norm, ("batch", "instance"))
        check_choice("decoder", decoder, ("full", "upsampling", "none"))
        check_choice("init", init, ("default", "official"))
        check_positive(primary_dim=primary_dim, class_dim=class_dim)
        if not (primary_kernel is None or (type(primary_kernel) is int and primary_kernel > 0)):
            raise UsageError(f"primary_kernel is {primary_kernel!r}; it must be a whole number above 0.")
        if not stem or any(len(layer) != 3 or min(layer) < 1 for layer in stem):
            raise UsageError(f"stem is {stem}; it must be (kernel, channels, stride), above 0, of each convolution.")
        width = stem[-1][1]
        if width % primary_dim:
            raise UsageError(f"primary_dim is {primary_dim}; it must divide the stem's last channels, {width}.")
        self.image_shape = (in_chans, *image_size(img_size))
        rows, columns = (self._map_side(side, stem) for side in self.image_shape[1:])
        if norm == "instance" and rows * columns == 1:
            raise UsageError(
                f"img_size is {img_size} with norm 'instance': the last map of the stem has a single cell, which has no"
                " variance; give a larger image."
            )
        kernel = (
            (rows, columns) if primary_kernel is None else (min(rows, primary_kernel), min(columns, primary_kernel))
        )
        self.senders, self.primary_dim, self.class_dim = width // primary_dim, primary_dim, class_dim
        self.num_features = width
        self.decoder_kind = decoder
        strides = [stride for *_, stride in stem]
        self.feature_info = [
            {"num_chs": channels, "reduction": prod(strides[: i + 1]), "module": f"stem.{STEM_STEP * i + 2}"}
            for i, (_, channels, _) in enumerate(stem)
        ]
        self.stem = self._make_stem(in_chans, stem, norm, norm_first, negative_slope)
        self.primary = DepthwisePrimaryCapsules(width, primary_dim, kernel)
        if init == "official" and norm == "instance":
            for module in self.stem:
                if isinstance(module, nn.InstanceNorm2d):
                    nn.init.uniform_(module.weight, -0.05, 0.05)
                    nn.init.uniform_(module.bias, -0.05, 0.05)
        self.reset_classifier(num_classes)

    @staticmethod
    def _map_side(side: int, stem: Stem) -> int:
        sizes = [side]
        for kernel, _, stride in stem:
            sizes.append(conv_out(sizes[-1], kernel, stride))
            if sizes[-1] < 1:
                chain = " -> ".join(map(str, sizes[:-1]))
                raise UsageError(
                    f"img_size has a side of {side}: the stem leaves {chain}, too little for the next {kernel}x{kernel}"
                    " convolution without padding; give a larger image or another stem."
                )
        return sizes[-1]

    @staticmethod
    def _make_stem(in_chans: int, stem: Stem, norm: str, norm_first: bool, negative_slope: float) -> nn.Sequential:
        layers: list[nn.Module] = []
        for kernel, channels, stride in stem:
            conv = nn.Conv2d(in_chans, channels, kernel, stride)
            nn.init.kaiming_normal_(conv.weight)
            if conv.bias is not None:
                nn.init.zeros_(conv.bias)
            activation = nn.LeakyReLU(negative_slope) if negative_slope else nn.ReLU()
            # Keras's epsilon and momentum 0.99, which is 0.01 here.
            normaliser: nn.Module = (
                nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)
                if norm == "batch"
                else _InstanceNorm(channels, eps=1e-3, affine=True)
            )
            layers += [conv, normaliser, activation] if norm_first else [conv, activation, normaliser]
            in_chans = channels
        return nn.Sequential(*layers)

    def make_classifier(self) -> nn.Module:
        return SelfAttentionRouting(self.senders, self.num_classes, self.primary_dim, self.class_dim)

    def make_decoder(self) -> nn.Module | None:
        in_features = self.num_classes * self.class_dim
        if self.decoder_kind == "none":
            return None
        if self.decoder_kind == "upsampling":
            return UpsamplingDecoder(in_features, self.image_shape)
        decoder = FullyConnectedDecoder(in_features, self.image_shape)
        first, second, last = (layer for layer in decoder.layers if isinstance(layer, nn.Linear))
        nn.init.kaiming_normal_(first.weight)
        nn.init.kaiming_normal_(second.weight)
        nn.init.xavier_normal_(last.weight)
        return decoder

    def score(self, poses: Tensor) -> Tensor:
        """sqrt(|v|^2 + 1e-7), as the authors' code does."""
        return lengths(poses, eps=1e-7)

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        for place in range(STEM_STEP * index, STEM_STEP * (index + 1)):
            inputs = self.stem[place](inputs)
        return inputs

    def neck(self, maps: list[Tensor]) -> Tensor:
        """The primary capsules: (batch, channels / primary_dim, primary_dim)."""
        return self.primary(maps[0])


_register = partial(
    register_model, module=EfficientCapsNet, source="arXiv:2101.12491", recipe="efficient_capsnet_mnist"
)

_register(
    "efficient_capsnet",
    summary="Self-attention routing for 28x28 grey images: 162 thousand parameters and a decoder of 1.4 million.",
    parameters=1_573_168,
    tiny={"img_size": 14, "stem": ((5, 4, 1), (3, 16, 2)), "class_dim": 6},
    variants={
        "norm first": {"norm_first": True, "decoder": "none", "primary_kernel": 3, "img_size": (14, 17), "in_chans": 2},
        "instance norm": {"norm": "instance", "negative_slope": 0.3, "decoder": "upsampling", "init": "official"},
    },
)
_register(
    "efficient_capsnet_mnist",
    summary="The same network as efficient_capsnet, under the paper's data set.",
    parameters=1_573_168,
)
_register(
    "efficient_capsnet_multimnist",
    summary="Efficient-CapsNet for two overlaid digits, 36x36.",
    parameters=2_090_800,
    recipe="efficient_capsnet_multimnist",
    img_size=36,
    stem=MULTIMNIST_STEM,
    primary_kernel=5,
)
_register(
    "efficient_capsnet_smallnorb",
    summary="Efficient-CapsNet for smallNORB: two grey views, 48x48, five classes, instance norms.",
    parameters=381_234,
    crop_pct=0.75,
    recipe="efficient_capsnet_smallnorb",
    num_classes=5,
    in_chans=2,
    img_size=48,
    stem=SMALLNORB_STEM,
    norm="instance",
    negative_slope=0.3,
    decoder="upsampling",
)
