"""SR-CapsNet: a convolutional network whose last maps are capsules, each of which chooses its classes by itself.

Source: Hahn, Pyeon, Kim, "Self-routing capsule networks", NeurIPS 2019, and the authors' code,
https://github.com/coder3000/SR-CapsNet
Cost at 32x32 with ResNet-20: 62 M multiply-adds an image, 21 M of them in the capsules.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mereo.core import Capsules, Grid, lengths, squash
from mereo.core.shapes import conv_out, image_size
from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_choice, check_positive, check_steps
from mereo.layers import BasicBlock, ConvNorm
from mereo.layers.capsules import ConvCapsules
from mereo.mechanisms.routing import DynamicRouting, EMRouting, SelfRouting
from mereo.mechanisms.routing.self_routing import EMPTY
from mereo.models.base import Features, VisionModel
from mereo.models.capsule_classifier import CapsuleClassifier
from mereo.models.registry import register_model

BACKBONES = ("resnet20", "convnet", "smallnet")
POOLINGS = ("average", "max", "linear")
ROUTINGS = ("self_routing", "dynamic", "em", *POOLINGS)
SOURCE = "https://github.com/coder3000/SR-CapsNet"


class _Stages(VisionModel):
    """A network that begins with one of `BACKBONES`.

    Attributes:
        places: how far the network has come: sides of its last map, its channels, the centre of the first cell and the
            pixels from one cell to the next.
    """

    first_conv = "stages.0.0.0"

    def _build_stages(self, backbone: str, planes: int, in_chans: int, img_size: int | tuple[int, int]) -> None:
        check_choice("backbone", backbone, BACKBONES)
        check_positive(planes=planes)
        self.image_shape = (in_chans, *image_size(img_size))
        sides, step, first = list(self.image_shape[1:]), 1, 0.5
        if backbone == "smallnet":
            convolution = nn.Conv2d(in_chans, 16 * planes, 7, 2, 1, bias=False)
            stages = [nn.Sequential(nn.Sequential(convolution, nn.BatchNorm2d(16 * planes), nn.ReLU()))]
            widths, strides = [16 * planes], [2]
            sides, first = [conv_out(side, 7, 2, 1) for side in sides], 2.5
        else:
            small = [planes * factor for factor in ((1, 2, 4, 8) if backbone == "convnet" else (1, 2, 4))]
            widths, strides = small, [1, *[2] * (len(small) - 1)]
            entries = list(zip([in_chans, *small], small, strides, strict=False))
            make = _convolutions if backbone == "convnet" else _residual_blocks
            stages = [make(i, *entry) for i, entry in enumerate(entries)]
            for stride in strides:
                sides = [-(-side // stride) for side in sides]
        self.stages, self.feature_info = nn.ModuleList(stages), []
        for i, (width, stride) in enumerate(zip(widths, strides, strict=True)):
            step *= stride
            self.feature_info.append({"num_chs": width, "reduction": step, "module": f"stages.{i}"})
        self.sides, self.channels, self.step, self.first = (sides[0], sides[1]), widths[-1], step, first

    def _primary(self, channels: int, kernel: int = 3, norm: bool = True) -> nn.Sequential:
        """A convolution and its norm, from the last map; the maps lose a border if the kernel is larger."""
        if min(self.sides) < kernel - 2:
            raise UsageError(
                f"img_size is {self.image_shape[1]} x {self.image_shape[2]}; the last map is {self.sides[0]} x"
                f" {self.sides[1]} then, and capsules need {kernel - 2} or more: give larger images."
            )
        convolution = nn.Conv2d(self.channels, channels, kernel, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(channels) if norm else nn.Identity())

    def _start(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight)


def _convolutions(index: int, inputs: int, outputs: int, stride: int) -> nn.Sequential:
    layers = [ConvNorm(inputs, outputs, 3, stride, activation=nn.ReLU)]
    layers += [ConvNorm(outputs, outputs, 3, activation=nn.ReLU)] if index in (1, 2) else []
    return nn.Sequential(*layers)


def _residual_blocks(index: int, inputs: int, outputs: int, stride: int) -> nn.Sequential:
    stem = [ConvNorm(inputs, outputs, 3, activation=nn.ReLU)] if index == 0 else []
    first = BasicBlock(outputs if index == 0 else inputs, outputs, stride)
    return nn.Sequential(*stem, first, *(BasicBlock(outputs, outputs, 1) for _ in range(2)))


class MiddleCapsules(nn.Module):
    """A convolution of capsules, each window routed by itself, and a batch norm of the poses, except for "dynamic".

    Args:
        types, dim: of capsules, and their pose size.
        stride: of the windows of 3x3, which reach one cell beyond the map.
        routing: a name of `mereo.mechanisms.routing.VOTE_ROUTINGS`.
        options: of the routing.

    Shapes: poses (batch, types, dim, rows, columns), activation (batch, types, rows, columns) or None -> the same for
        ceil(rows / stride) and ceil(columns / stride).
    """

    def __init__(self, types: int, dim: int, stride: int, routing: str, options: Mapping[str, Any]) -> None:
        super().__init__()
        side = round(dim**0.5)
        self.shape = (side, side) if routing == "em" else (dim,)
        self.capsules = ConvCapsules(
            types, types, 3, stride, 1, in_pose=self.shape, pose="matrix" if routing == "em" else "vector",
            compete="window", routing=routing, routing_options=options,
        )  # fmt: skip
        if routing == "self_routing":
            bound = (6 / (types * dim * dim)) ** 0.5
            nn.init.uniform_(self.capsules.weight, -bound, bound)
        self.norm = nn.Identity() if routing == "dynamic" else nn.BatchNorm2d(types * dim)

    def forward(self, poses: Tensor, activation: Tensor | None) -> tuple[Tensor, Tensor]:
        parents = self.capsules(poses.unflatten(2, self.shape), activation)
        maps = self.norm(parents.pose.flatten(1, -3))
        return maps.unflatten(1, poses.shape[1:3]), parents.activation


class SelfRoutingCapsNet(_Stages, CapsuleClassifier):
    """Classify by capsules that route themselves.

    backbone -> activations a = sigmoid(BN(conv(x))), poses u = BN(conv(x)) -> class activations, see `SelfRouting`

    The scores are the logarithms of the class activations, which sum to one, so that the cross-entropy of the scores is
    the negative log-likelihood.

    Args:
        num_classes, in_chans, img_size: as in timm.
        backbone: "resnet20" (its last map has a quarter of the image's sides), "convnet" (an eighth) or "smallnet" (one
            convolution of 7x7 with stride 2).
        planes: channels of the first convolution; a sixteenth of them in "smallnet".
        capsules, capsule_dim: types of capsules, and their pose size.
        depth: layers of capsules above the first; those between the first and the classes are convolutions of
            capsules; the first has stride 2, except in "convnet".
        routing: "self_routing", or the paper's alternatives: "dynamic", "em" (capsule_dim is a square then), and
            without capsules "average", "max" (pooling and a linear layer) or "linear" (one more convolution).
        routing_steps: of "dynamic" and "em".

    Shapes: images (batch, in_chans, height, width) -> log-probabilities (batch, num_classes).

    Deviates: the class activations of "dynamic" and "em" are divided by their sum in all networks, as the authors do in
        their residual networks only. The EM routing is ours, without the mistakes of the baseline in the authors' code.

    Reference: Hahn, Pyeon, Kim 2019 (NeurIPS).
    """

    scores_are_lengths = False
    default_loss = "cross_entropy"

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 32,
        *,
        backbone: str = "resnet20",
        planes: int = 16,
        capsules: int = 32,
        capsule_dim: int = 16,
        depth: int = 1,
        routing: str = "self_routing",
        routing_steps: int = 3,
    ) -> None:
        super().__init__()
        check_choice("routing", routing, ROUTINGS)
        check_positive(capsules=capsules, capsule_dim=capsule_dim)
        check_steps(1, routing_steps=routing_steps)
        check_positive(depth=depth)
        if routing == "em" and round(capsule_dim**0.5) ** 2 != capsule_dim:
            raise UsageError(
                f"capsule_dim is {capsule_dim} with routing 'em', whose poses are square matrices; give 16."
            )
        self._build_stages(backbone, planes, in_chans, img_size)
        self.routing, self.routing_steps, self.capsule_dim, self.types = routing, routing_steps, capsule_dim, capsules
        kernel = 5 if backbone == "smallnet" else 3
        normed = backbone != "smallnet" or routing != "dynamic"  # as the authors' code has it
        self.primary = self._primary(capsules * (capsule_dim + (routing != "dynamic")), kernel, normed)
        if kernel == 5:
            self.sides, self.first = (self.sides[0] - 2, self.sides[1] - 2), self.first + self.step
        options = {} if routing == "self_routing" else {"steps": routing_steps}
        self.middle = nn.ModuleList()
        for layer in range(depth - 1):
            stride = 2 if layer == 0 and backbone != "convnet" else 1
            self.middle.append(MiddleCapsules(capsules, capsule_dim, stride, routing, options))
            self.sides, self.step = (-(-self.sides[0] // stride), -(-self.sides[1] // stride)), self.step * stride
        self.senders = capsules * self.sides[0] * self.sides[1]
        self.num_features = self.senders * (capsule_dim + (routing != "dynamic"))
        self._start()
        self.reset_classifier(num_classes)

    @classmethod
    def class_for(cls, arguments: Mapping[str, Any]) -> type[VisionModel]:
        check_choice("routing", arguments["routing"], ROUTINGS)
        return PooledNet if arguments["routing"] in POOLINGS else cls

    @property
    def score_kind(self) -> str:
        return "logits"

    def make_classifier(self) -> nn.Module:
        sizes = (self.senders, self.num_classes)
        head: nn.Module
        if self.routing == "self_routing":
            head = SelfRouting(*sizes, self.capsule_dim, 0)
        elif self.routing == "em":
            head = EMRouting(*sizes, round(self.capsule_dim**0.5), steps=self.routing_steps)
        else:
            head = DynamicRouting(*sizes, self.capsule_dim, self.capsule_dim, steps=self.routing_steps)
        head.coupling.senders = Grid(*self.sides, self.types, self.first, self.step)
        return head

    def neck(self, maps: list[Tensor]) -> Features:
        """Poses (batch, capsules, pose) by type, row, column, and except in "dynamic" activations (batch, capsules)."""
        made, shape = self.primary(maps[-1]), (self.types, self.capsule_dim)
        poses, active = made[:, : shape[0] * shape[1]].unflatten(1, shape), made[:, shape[0] * shape[1] :].sigmoid()
        capsules: Any = (squash(poses, 2), None) if self.routing == "dynamic" else (poses, active)
        for layer in self.middle:
            capsules = layer(*capsules)
        children = capsules[0].movedim(2, -1).flatten(1, 3)
        return children if self.routing == "dynamic" else (children, capsules[1].flatten(1))

    def class_capsules(self, features: Any) -> Capsules:
        """Poses (batch, classes, pose), of self-routing without entries, and log-probabilities (batch, classes)."""
        if isinstance(features, Tensor):
            poses = self.head(features)
            active = lengths(poses)
        else:
            made = self.head(*features)
            poses, active = made[..., :-1], made[..., -1]
        wide = active.to(accumulation_type(active))
        shares = wide / wide.sum(1, keepdim=True).clamp(min=EMPTY)
        return Capsules(poses, shares.clamp(min=EMPTY).log().to(active.dtype))


class PooledNet(_Stages):
    """The same convolutions without capsules, to compare `SelfRoutingCapsNet` with.

    Args:
        num_classes, in_chans, img_size, backbone, planes, capsules, capsule_dim: as for `SelfRoutingCapsNet`.
        routing: "average" or "max" pooling before the linear layer, or "linear", for which a convolution of
            capsules * capsule_dim channels, BN, ReLU come before it.
        depth, routing_steps: 1 and 3, the defaults: there are no layers of capsules and no routing to change.

    Shapes: images (batch, in_chans, height, width) -> scores (batch, num_classes).
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 32,
        *,
        backbone: str = "resnet20",
        planes: int = 16,
        capsules: int = 32,
        capsule_dim: int = 16,
        depth: int = 1,
        routing: str = "average",
        routing_steps: int = 3,
    ) -> None:
        super().__init__()
        check_choice("routing", routing, POOLINGS)
        for name, value, default in (("depth", depth, 1), ("routing_steps", routing_steps, 3)):
            if value != default:
                raise UsageError(
                    f"{name} is {value} with routing {routing!r}, which has no capsules to route; give {default}."
                )
        self._build_stages(backbone, planes, in_chans, img_size)
        self.routing = routing
        self.extra = self._primary(capsules * capsule_dim) if routing == "linear" else None
        self.num_features = self.channels
        if self.extra is not None:
            self.num_features = capsules * capsule_dim * self.sides[0] * self.sides[1]
        self._start()
        self.reset_classifier(num_classes)

    def make_classifier(self) -> nn.Module:
        return nn.Linear(self.num_features, self.num_classes)

    def neck(self, maps: list[Tensor]) -> Tensor:
        return maps[-1] if self.extra is None else torch.relu(self.extra(maps[-1]))

    def pool(self, features: Tensor) -> Tensor:
        if self.routing == "linear":
            return features.flatten(1)
        return features.amax((2, 3)) if self.routing == "max" else features.mean((2, 3))


_CIFAR: dict[str, Any] = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010)}
_register = partial(register_model, module=SelfRoutingCapsNet, source=SOURCE, recipe="self_routing")

_register(
    "self_routing_capsnet_resnet20",
    summary="Self-routing capsules on ResNet-20, for 32x32 colour images.",
    parameters=931_664,
    aliases=("sr_resnet20",),
    tiny={"planes": 4, "capsules": 3, "capsule_dim": 4, "img_size": 12},
    variants={
        "dynamic": {"routing": "dynamic"},
        "em": {"routing": "em", "backbone": "convnet"},
        "deeper": {"depth": 2},
        "smallnet, dynamic": {"depth": 2, "backbone": "smallnet", "routing": "dynamic"},
        "convnet, em": {"depth": 2, "backbone": "convnet", "routing": "em"},
        "average": {"routing": "average", "backbone": "convnet"},
        "max": {"routing": "max"},
        "linear": {"routing": "linear"},
    },
    **_CIFAR,
)
_register(
    "self_routing_capsnet_resnet20_depth2",
    summary="Self-routing capsules on ResNet-20 with a convolution of capsules between the first and the classes.",
    parameters=3_187_536,
    aliases=("sr_resnet20_depth2",),
    depth=2,
    **_CIFAR,
)
_register(
    "self_routing_capsnet_convnet",
    summary="Self-routing capsules on six convolutions, for 32x32 grey images of smallNORB.",
    parameters=479_312,
    aliases=("sr_convnet",),
    crop_pct=2 / 3,
    num_classes=5,
    in_chans=1,
    backbone="convnet",
    capsules=16,
)
_register(
    "self_routing_capsnet_smallnet",
    summary="Self-routing capsules on one convolution and one of capsules, for 32x32 grey images of smallNORB.",
    parameters=2_432_864,
    aliases=("sr_smallnet",),
    crop_pct=2 / 3,
    num_classes=5,
    in_chans=1,
    backbone="smallnet",
    capsules=16,
    depth=2,
)
