"""DeepCaps: a deep network of convolutional capsules, with routing by 3-D convolution and a decoder for all classes.

Source: Rajasegaran, Jayasundara, Jayasekara, Jayasekara, Seneviratne, Rodrigo 2019, arXiv:1904.09546, and the authors'
code.
Cost at 64x64: nearly all in the convolutions without routing; 819,200 votes an image for the classes, which are not
stored.
"""

import math
from functools import partial

import torch
from torch import Tensor, nn

from mereo.core import Grid, squash
from mereo.core.shapes import image_size
from mereo.errors import UsageError, check_positive, check_steps
from mereo.layers.capsules import ClassIndependentDecoder, PaddedConv2d, flat_capsules
from mereo.mechanisms.routing import Convolution3DRouting, DynamicRouting
from mereo.models.capsule_classifier import CapsuleClassifier
from mereo.models.registry import register_model

STEM = 128
"""Channels of the first convolution, each a type of capsules of one number."""


class ConvCaps(nn.Module):
    """Capsules by a convolution and a squash of each, without routing.

    Args:
        in_channels: types times dimensions of the capsules below.
        out_types, out_dim: of the capsules.
        stride: of the convolution of 3x3, padded as TensorFlow's SAME does.

    Shapes: (batch, in_channels, rows, columns) -> (batch, out_types * out_dim, ceil(rows / stride), ceil(columns /
        stride)); channel type * out_dim + d is entry d of a type.

    Deviates: the squash has 1e-16 under its root, for the authors' 1e-7.
    """

    def __init__(self, in_channels: int, out_types: int, out_dim: int, stride: int = 1) -> None:
        super().__init__()
        self.shape = (out_types, out_dim)
        self.conv = PaddedConv2d(in_channels, out_types * out_dim, 3, stride, same=True, bias=False)
        # Keras takes the root of the number of weights as both fans of a kernel with six axes.
        bound = (3 / self.conv.weight.numel() ** 0.5) ** 0.5
        nn.init.uniform_(self.conv.weight, -bound, bound)

    def forward(self, maps: Tensor) -> Tensor:
        return squash(self.conv(maps).unflatten(1, self.shape), 2).flatten(1, 2)


class Block(nn.Module):
    """x0 = caps(x) with stride 2,   caps(caps(x0)) + skip(x0), where the skip is a capsule layer too.

    Args:
        in_channels: of the map.
        types, dim: of all its capsules.
        routes: whether the skip is a `Convolution3DRouting`.
        steps: of its routing.

    Shapes: (batch, in_channels, rows, columns) -> (batch, types * dim, ceil(rows / 2), ceil(columns / 2)).
    """

    def __init__(self, in_channels: int, types: int, dim: int, *, routes: bool, steps: int) -> None:
        super().__init__()
        self.shape, channels = (types, dim), types * dim
        self.first = ConvCaps(in_channels, types, dim, 2)
        self.second, self.third = (ConvCaps(channels, types, dim) for _ in range(2))
        self.skip = Convolution3DRouting(dim, types, dim, steps=steps) if routes else ConvCaps(channels, types, dim)

    def forward(self, maps: Tensor) -> Tensor:
        entered: Tensor = self.first(maps)
        main: Tensor = self.third(self.second(entered))
        if isinstance(self.skip, ConvCaps):
            return main + self.skip(entered)
        return main + self.skip(entered.unflatten(1, self.shape)).flatten(1, 2)


class ClassCaps(DynamicRouting):
    """Dynamic routing to the classes, with a bias, as the authors' code starts it.

    Args:
        senders, classes: how many children and parents.
        sender_dim, class_dim: their pose sizes.
        steps: passes of routing.

    Shapes: children (batch, senders, sender_dim) -> (batch, classes, class_dim).

    Reference: arXiv:1904.09546.
    """

    def __init__(self, senders: int, classes: int, sender_dim: int, class_dim: int, *, steps: int = 3) -> None:
        super().__init__(senders, classes, sender_dim, class_dim, steps=steps, bias=True)
        bound = (6 / ((sender_dim + class_dim) * classes * senders)) ** 0.5
        nn.init.uniform_(self.weight, -bound, bound)
        assert self.bias is not None
        nn.init.uniform_(self.bias, -((6 / (classes + class_dim)) ** 0.5), (6 / (classes + class_dim)) ** 0.5)


class DeepCaps(CapsuleClassifier):
    """Classify by four blocks of convolutional capsules and one dynamic routing of the last two maps.

    image -> conv 3x3, ReLU, BN -> 4 blocks, each half as large -> capsules of the last two -> class capsules

    Args:
        num_classes, in_chans, img_size: as in timm.
        types: kinds of capsules in every map.
        dims: pose sizes of the blocks; the last two are the same.
        class_dim: pose size of a class capsule.
        routing_steps: passes of the routing to the classes.
        block_steps: passes of the routing by 3-D convolution, in the last block.
        decoder: have a decoder that rebuilds the image from one class capsule.

    Shapes: images (batch, in_chans, height, width) in [0, 1] -> lengths (batch, num_classes).

    Deviates: children of the classes are numbered by type, row and column, where the authors number them by row, column
        and type; only learned transforms are numbered so. The norm of the stem has PyTorch's epsilon, 1e-5, for Keras's
        1e-3, and lengths nothing under their root, for 1e-7 that is added to every number.

    Reference: arXiv:1904.09546. The network equals loops written from the paper and the authors' code, which runs on
        TensorFlow 1 only and was not run. `ConvCaps` and `ClassCaps` equal a port to PyTorch,
        https://github.com/HopefulRational/DeepCaps-PyTorch, to 5e-9.
    """

    first_conv = "stages.0.0.0"
    neck_inputs = (2, 3)

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 64,
        *,
        types: int = 32,
        dims: tuple[int, int, int, int] = (4, 8, 8, 8),
        class_dim: int = 32,
        routing_steps: int = 3,
        block_steps: int = 3,
        decoder: bool = True,
    ) -> None:
        super().__init__()
        check_positive(types=types, class_dim=class_dim)
        check_steps(1, routing_steps=routing_steps, block_steps=block_steps)
        if len(dims) != 4 or min(dims) < 1 or dims[2] != dims[3]:
            raise UsageError(f"dims is {dims}; give four sizes above 0, the last two the same.")
        self.image_shape, self.with_decoder = (in_chans, *image_size(img_size)), decoder
        self.dim, self.class_dim, self.routing_steps = dims[3], class_dim, routing_steps
        convolution = nn.Conv2d(in_chans, STEM, 3, 1, 1)
        nn.init.xavier_uniform_(convolution.weight)
        if convolution.bias is not None:
            nn.init.zeros_(convolution.bias)
        stem = nn.Sequential(convolution, nn.ReLU(), nn.BatchNorm2d(STEM))
        blocks, channels = [], STEM
        for i, dim in enumerate(dims):
            blocks.append(Block(channels, types, dim, routes=i == 3, steps=block_steps))
            channels = types * dim
        self.stages = nn.ModuleList([nn.Sequential(stem, blocks[0]), *blocks[1:]])
        self.feature_info = [
            {"num_chs": types * dim, "reduction": 2 ** (i + 1), "module": f"stages.{i}"} for i, dim in enumerate(dims)
        ]
        third, fourth = ([math.ceil(side / 2**halved) for side in self.image_shape[1:]] for halved in (3, 4))
        before = types * fourth[0] * fourth[1]
        self.grid = Grid(third[0], third[1], types, 4.0, 8.0, prefix=before)
        self.senders = before + types * third[0] * third[1]
        self.num_features = self.senders * self.dim
        self.reset_classifier(num_classes)

    def make_classifier(self) -> nn.Module:
        head = ClassCaps(self.senders, self.num_classes, self.dim, self.class_dim, steps=self.routing_steps)
        head.coupling.senders = self.grid
        return head

    def make_decoder(self) -> nn.Module | None:
        return ClassIndependentDecoder(self.class_dim, self.image_shape) if self.with_decoder else None

    def neck(self, maps: list[Tensor]) -> Tensor:
        """The capsules of the last map and then of the one before: (batch, capsules, dim)."""
        third, fourth = maps
        return torch.cat((flat_capsules(fourth, self.dim), flat_capsules(third, self.dim)), 1)


_register = partial(register_model, module=DeepCaps, source="arXiv:1904.09546", recipe="deepcaps")

_register(
    "deepcaps_64",
    summary="DeepCaps for colour images resized to 64x64: 13.4 million parameters.",
    parameters=13_426_995,
    tiny={"img_size": 16, "types": 4, "dims": (2, 3, 4, 4), "class_dim": 6},
    variants={"large, one pass": {"img_size": (36, 33), "routing_steps": 1, "decoder": True}},
)
_register(
    "deepcaps_32",
    summary="DeepCaps for colour images of 32x32.",
    parameters=8_510_851,
    img_size=32,
)
_register(
    "deepcaps_28",
    summary="DeepCaps for grey images of 28x28.",
    parameters=8_500_337,
    in_chans=1,
    img_size=28,
)
_register(
    "deepcaps_small",
    summary="A small DeepCaps for grey images of 28x28, ours.",
    parameters=2_179_057,
    in_chans=1,
    img_size=28,
    types=16,
    dims=(4, 4, 8, 8),
    routing_steps=1,
)
