"""AR-CapsNet: convolutional capsules whose parents attend to the types of children, in one pass.

Source: Choi, Seo, Im, Kang 2019, arXiv:1907.01750, and the authors' code,
https://github.com/chjw1475/Attention-Routing-Capsules
Cost at 28x28: 64 M multiply-adds an image, 29 M of them in the stem; no iteration.
"""

import math
from functools import partial

import torch
from torch import Tensor, nn

from mereo.core import Grid, lengths
from mereo.core.shapes import image_size
from mereo.errors import UsageError, check_positive
from mereo.layers.capsules import FullyConnectedDecoder, PaddedConv2d
from mereo.mechanisms.routing import AttentionRouting
from mereo.models.capsule_classifier import CapsuleClassifier
from mereo.models.registry import register_model

MOST_BLOCKS = 100
HIDDEN = (512, 512)
"""Sizes inside the decoder."""


class PrimaryTypes(nn.Module):
    """tanh(a linear map for each type (relu(conv 3x3 with stride 2)))

    Args:
        in_channels: of the map.
        types, dim: of capsules, and their pose size.

    Shapes: (batch, in_channels, rows, columns) -> (batch, types * dim, ceil(rows / 2), ceil(columns / 2)); channel
        type * dim + d is entry d of a type.

    Reference: arXiv:1907.01750, section 3.1.
    """

    def __init__(self, in_channels: int, types: int, dim: int) -> None:
        super().__init__()
        self.conv = PaddedConv2d(in_channels, types * dim, 3, 2, same=True)
        self.affine = nn.Conv2d(types * dim, types * dim, 1, groups=types)
        bound = (6 / (2 * dim)) ** 0.5
        nn.init.uniform_(self.affine.weight, -bound, bound)

    def forward(self, maps: Tensor) -> Tensor:
        capsules: Tensor = self.affine(self.conv(maps).relu())
        return capsules.tanh()


class ConvCaps(nn.Module):
    """tanh(route(x)), or tanh(x + route(x)) if it is residual.

    Args:
        types, sender_dim, dim: types of both children and parents, and their pose sizes.
        stride: of the convolutions; above 1 it is not residual.
        dropout: of the numbers of the children.

    Shapes: (batch, types * sender_dim, rows, columns) -> (batch, types * dim, ceil(rows / stride), ceil(columns /
        stride)).

    Reference: arXiv:1907.01750, section 3.
    """

    def __init__(self, types: int, sender_dim: int, dim: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.types, self.residual = types, stride == 1
        self.routing = AttentionRouting(types, types, sender_dim, dim, stride=stride, dropout=dropout)

    def forward(self, maps: Tensor) -> Tensor:
        parents: Tensor = self.routing(maps.unflatten(1, (self.types, -1))).flatten(1, 2)
        return torch.tanh(maps + parents if self.residual else parents)


class ARCapsNet(CapsuleClassifier):
    """Classify by capsules with attention routing between convolutional layers and to the classes.

    image -> twice conv 3x3, BN, ReLU -> primary capsules -> blocks -> one window over the whole map -> classes

    The score of a class is |v| / sqrt(dim), where every number of v is a tanh.

    Args:
        num_classes, in_chans, img_size: as in timm.
        stem: channels of the first two convolutions.
        types: kinds of capsules of every map.
        primary_dim: pose size of the primary capsules.
        dim: pose size of all others, including the classes.
        blocks: convolutional layers of capsules, the first with stride 2, the others residual.
        dropout: of the numbers of the children of every routing, in training.
        decoder: have a decoder that rebuilds the image from one class capsule.

    Shapes: images (batch, in_chans, height, width) in [0, 1] -> scores (batch, num_classes) in [0, 1).

    Deviates: sides need not be divisible by 4; running statistics of batch norms move by 0.1, where the framework of
        the authors has 0.01.

    Reference: arXiv:1907.01750. The network equals loops written from the paper and the authors' code, and has the
        number of parameters that this prints; it runs on TensorFlow 1 only and was not run.
    """

    first_conv = "stages.0.0"
    scores_are_lengths = False

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 1,
        img_size: int | tuple[int, int] = 28,
        *,
        stem: int = 64,
        types: int = 8,
        primary_dim: int = 16,
        dim: int = 32,
        blocks: int = 1,
        dropout: float = 0.5,
        decoder: bool = True,
    ) -> None:
        super().__init__()
        check_positive(stem=stem, types=types, primary_dim=primary_dim, dim=dim)
        if not 0 <= blocks <= MOST_BLOCKS:
            raise UsageError(f"blocks is {blocks}; it must be at least 0 and at most {MOST_BLOCKS}.")
        self.image_shape, self.with_decoder = (in_chans, *image_size(img_size)), decoder
        self.types, self.dim, self.dropout = types, dim, dropout
        convolutions: list[nn.Module] = []
        for inputs in (in_chans, stem):
            convolutions += [nn.Conv2d(inputs, stem, 3, padding=1), nn.BatchNorm2d(stem, eps=1e-3), nn.ReLU()]
        stages = [nn.Sequential(*convolutions), PrimaryTypes(stem, types, primary_dim)]
        widths, steps, first = [stem, types * primary_dim], [1, 2], [0.5, 1.5]
        self.pose = primary_dim
        for block in range(blocks):
            stages.append(ConvCaps(types, self.pose, dim, 1 if block else 2, dropout))
            self.pose = dim
            widths.append(types * dim)
            steps.append(4)
            first.append(3.5)
        for module in (module for stage in stages[:2] for module in stage.modules()):
            if isinstance(module, nn.Conv2d):
                if module.groups == 1:
                    nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        self.stages = nn.ModuleList(stages)
        self.feature_info = [
            {"num_chs": width, "reduction": step, "module": f"stages.{i}"}
            for i, (width, step) in enumerate(zip(widths, steps, strict=True))
        ]
        rows, columns = (math.ceil(side / steps[-1]) for side in self.image_shape[1:])
        self.grid = Grid(rows, columns, types, first[-1], steps[-1])
        self.num_features = types * self.pose * rows * columns
        self.reset_classifier(num_classes)

    def make_classifier(self) -> nn.Module:
        whole = (self.grid.rows, self.grid.columns)
        head = AttentionRouting(
            self.types, self.num_classes, self.pose, self.dim, kernel=whole, same=False, dropout=self.dropout
        )
        head.coupling.senders = self.grid
        return head

    def make_decoder(self) -> nn.Module | None:
        if not self.with_decoder:
            return None
        decoder = FullyConnectedDecoder(self.num_classes * self.dim, self.image_shape, HIDDEN)
        for layer in decoder.layers:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
        return decoder

    def score(self, poses: Tensor) -> Tensor:
        """|v| / sqrt(dim): (batch, classes, dim) -> (batch, classes)."""
        return lengths(poses) * self.dim**-0.5

    def neck(self, maps: list[Tensor]) -> Tensor:
        """The capsules that vote for the classes: (batch, types, pose, rows, columns)."""
        return maps[0].unflatten(1, (self.types, self.pose))

    def route(self, features: Tensor) -> Tensor:
        poses: Tensor = self.head(features).flatten(2)
        return poses.tanh()


_register = partial(register_model, module=ARCapsNet, source="arXiv:1907.01750", recipe="ar_capsnet")

_register(
    "ar_capsnet_mnist",
    summary="AR-CapsNet for grey images of 28x28, with one convolutional layer of capsules.",
    parameters=5_312_528,
    tiny={"img_size": 12, "stem": 6, "types": 3, "primary_dim": 4, "dim": 5},
    variants={
        "no blocks": {"blocks": 0, "in_chans": 2, "decoder": False},
        "residual": {"blocks": 2, "img_size": (13, 10)},
    },
    aliases=("ar_capsnet",),
)
_register(
    "ar_capsnet_mnist_0",
    summary="AR-CapsNet for grey images of 28x28 without convolutional layers of capsules.",
    parameters=4_889_456,
    dim=16,
    blocks=0,
)
_register(
    "ar_capsnet_affnist",
    summary="AR-CapsNet for affNIST's moved digits of 40x40.",
    parameters=3_500_832,
    img_size=40,
    dim=16,
)
_register(
    "ar_capsnet_cifar10",
    summary="AR-CapsNet for 32x32 colour images, with four convolutional layers of capsules: 9.6 million parameters.",
    parameters=9_566_336,
    in_chans=3,
    img_size=32,
    blocks=4,
)
_register(
    "ar_capsnet_small",
    summary="A small AR-CapsNet for grey images of 16x16, ours.",
    parameters=548_160,
    recipe="ar_capsnet_digits",
    img_size=16,
    stem=32,
    types=6,
    primary_dim=8,
    dim=8,
    dropout=0.2,
)
