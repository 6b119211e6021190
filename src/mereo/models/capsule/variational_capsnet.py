"""Capsules with variational Bayes routing: matrix capsules whose clusters have priors.

Source: De Sousa Ribeiro, Leontidis, Kollias 2020, arXiv:1905.11455, and the authors' code.
Cost at 32x32 with 32 types: 0.2 G multiply-adds an image for the votes, and three passes over 7.6 M numbers of them.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mereo.core import Capsules, Grid
from mereo.core.shapes import conv_out, image_size
from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_choice, check_positive, check_steps
from mereo.layers.capsules import ConvCapsules
from mereo.models.capsule_classifier import CapsuleClassifier
from mereo.models.registry import register_model

STARTS = ("xavier", "noisy_identity")
SCORES = ("activations", "evidence")
COORDINATES = {"paper": "children", "released": "parents"}
"""Whose place is added to the votes for the classes."""
LEAST = 1e-7
"""Least value of an activation a and of 1 - a, before the logit of a is taken."""


class NormedPrimary(nn.Module):
    """Poses and activations by one convolution; the poses of each type are normed together, with one scale and shift.

    Args:
        channels: of the map.
        types, side: kinds of capsules, and the side of their pose matrices.
        kernel, stride: of the convolution.

    Shapes: (batch, channels, rows, columns) -> pose (batch, types, side, side, rows', columns'), activation (batch,
        types, rows', columns').
    """

    def __init__(self, channels: int, types: int, side: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.types, self.side = types, side
        poses = types * side * side
        self.conv = nn.Conv2d(channels, poses + types, kernel, stride, bias=False)
        # Poses and activations start as convolutions of their own would.
        for part, count in ((self.conv.weight[:poses], poses), (self.conv.weight[poses:], types)):
            bound = (6 / ((channels + count) * kernel * kernel)) ** 0.5
            nn.init.uniform_(part.detach(), -bound, bound)
        self.pose_norm, self.activation_norm = nn.BatchNorm3d(types), nn.BatchNorm2d(types)

    def forward(self, features: Tensor) -> Capsules:
        made = self.conv(features)
        poses, active = made.split((made.shape[1] - self.types, self.types), 1)
        normed = self.pose_norm(poses.unflatten(1, (self.types, self.side**2)))
        return Capsules(normed.unflatten(2, (self.side, self.side)), self.activation_norm(active).sigmoid())


class VariationalCapsNet(CapsuleClassifier):
    """Classify by matrix capsules with variational Bayes routing between positions that compete.

    image -> conv 5x5, stride 2, BN, ReLU -> poses and activations -> 3x3, stride 2 -> 3x3 -> classes

    Args:
        num_classes, in_chans, img_size: as in timm; a side must be at least 17, with one layer at least 9.
        channels: of the first convolution.
        types: kinds of primary capsules and of both convolutions of capsules; with one number the classes follow upon
            the primary capsules, which are a convolution of 3x3 with stride 2 then, and every position has transforms
            of its own.
        side: of the pose matrices.
        routing_steps: how often parents are fitted.
        covariance: "diagonal" or "full", whose roots of matrices have no form in ONNX.
        scores: "activations", in (0, 1) and given to the cross-entropy as they are (the authors' code), which cannot
            fall below log(1 + (classes - 1) / e) then, or "evidence", the logits of the activations.
        coordinates: added to two entries of the votes for the classes: "paper", row and column of the child, or
            "released", which gives the networks that the authors' code makes; with one layer there are none.
        init: "xavier" (uniform) or "noisy_identity", 0.1 times the identity and uniform noise up to 0.01.

    Shapes: images (batch, in_chans, height, width) -> scores (batch, num_classes).

    Deviates: from the authors' code as released, which adds 0.1 to both entries, the place of a parent in a map of one
        position: `coordinates="released"` is the same. A batch of one image has no statistics of its own, so that the
        running ones norm its class capsules, where the authors' code fails.

    Reference: arXiv:1905.11455.
    """

    first_conv = "stem.0"
    channels_last = False
    scores_are_lengths = False
    default_loss = "cross_entropy"

    def __init__(
        self,
        num_classes: int = 5,
        in_chans: int = 2,
        img_size: int | tuple[int, int] = 32,
        *,
        channels: int = 64,
        types: tuple[int, ...] = (16, 32, 32),
        side: int = 4,
        routing_steps: int = 3,
        covariance: str = "diagonal",
        scores: str = "activations",
        init: str = "xavier",
        coordinates: str = "paper",
    ) -> None:
        super().__init__()
        check_positive(channels=channels, side=side)
        check_steps(1, routing_steps=routing_steps)
        check_choice("scores", scores, SCORES)
        check_choice("init", init, STARTS)
        check_choice("coordinates", coordinates, COORDINATES)
        if len(types) not in (1, 3) or min(types) < 1:
            raise UsageError(f"types is {types}; give one number or three, each at least 1.")
        self.image_shape, self.scores, self.init, self.side = (in_chans, *image_size(img_size)), scores, init, side
        self.coordinates = coordinates
        self.options: dict[str, Any] = {
            "in_pose": (side, side),
            "routing": "variational_bayes",
            "routing_options": {"steps": routing_steps, "covariance": covariance},
        }
        convolution = nn.Conv2d(in_chans, channels, 5, 2, bias=False)
        nn.init.kaiming_uniform_(convolution.weight)
        self.stem = nn.Sequential(convolution, nn.BatchNorm2d(channels), nn.ReLU())
        self.feature_info = [{"num_chs": channels, "reduction": 2, "module": "stem"}]
        only = len(types) == 1
        self.primary = NormedPrimary(channels, types[0], side, *((3, 2) if only else (1, 1)))
        windows = [(3, 2)] if only else [(1, 1), (3, 2), (3, 1)]
        sides = [conv_out(each, 5, 2) for each in self.image_shape[1:]]
        first, step, self.grids = 2.5, 2, []
        for kinds, (kernel, stride) in zip(types, windows, strict=True):
            first, step = first + step * (kernel - 1) / 2, step * stride
            sides = [conv_out(each, kernel, stride) for each in sides]
            if min(sides) < 1:
                raise UsageError(
                    f"img_size is {self.image_shape[1]} x {self.image_shape[2]}; nothing is left of such images after"
                    f" the convolutions: give sides of at least {9 if only else 17}."
                )
            self.grids.append(Grid(sides[0], sides[1], kinds, first, step))
        self.layers = nn.ModuleList()
        for below, above, (kernel, stride) in zip(types[:-1], types[1:], windows[1:], strict=True):
            layer = ConvCapsules(below, above, kernel, stride, **self.options)
            number = len(self.layers)
            through = f"layers.{number + 1}.routing.coupling" if number + 2 < len(self.grids) else None
            layer.routing.coupling.senders = self.grids[number]._replace(feeds=0, through=through)
            self.layers.append(self._started(layer))
        self.num_features = types[-1] * sides[0] * sides[1] * (side * side + 1)
        self.reset_classifier(num_classes)

    def _started(self, layer: ConvCapsules) -> ConvCapsules:
        """Transforms as they start."""
        offsets = 1 if layer.shared else layer.offsets
        bound = (6 / ((layer.in_types + layer.out_types) * offsets * self.side**2)) ** 0.5
        if self.init == "xavier":
            nn.init.uniform_(layer.weight, -bound, bound)
        else:
            with torch.no_grad():
                nn.init.uniform_(layer.weight, 0, 0.01).add_(0.1 * torch.eye(self.side))
        return layer

    @property
    def score_kind(self) -> str:
        return "logits" if self.scores == "evidence" else super().score_kind

    def make_classifier(self) -> nn.Module:
        last, shared = self.grids[-1], len(self.grids) > 1
        head = ConvCapsules(
            last.types, self.num_classes, None, size=(last.rows, last.columns), shared=shared, coordinates=shared,
            coordinate_offset=1.0, coordinate_scale=0.1, coordinates_of=COORDINATES[self.coordinates], **self.options,
        )  # fmt: skip
        head.routing.coupling.senders = last
        return self._started(head)

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        return self.stem(inputs)

    def neck(self, maps: list[Tensor]) -> Capsules:
        """The capsules that vote for the classes: pose (batch, types, side, side, rows, columns), activation."""
        capsules: Capsules = self.primary(maps[0])
        for layer in self.layers:
            capsules = layer(*capsules)
        return capsules

    def class_capsules(self, features: Capsules) -> Capsules:
        poses, active = self.head(*features)
        active = active.flatten(1)
        if self.scores == "evidence":
            active = active.to(accumulation_type(active)).logit(LEAST).to(active.dtype)
        return Capsules(poses.flatten(2), active)


_register = partial(
    register_model, module=VariationalCapsNet, source="arXiv:1905.11455", crop_pct=2 / 3, recipe="variational_bayes"
)

_register(
    "variational_capsnet_base",
    summary="Variational Bayes routing with 32 types of capsules, for 32x32 crops of smallNORB.",
    parameters=244_682,
    aliases=("vb_base",),
    tiny={"img_size": 19, "channels": 6, "types": (2, 3, 3), "side": 2, "routing_steps": 2, "num_classes": 4},
    variants={
        "one layer": {"types": (3,)},
        "evidence": {"scores": "evidence", "init": "noisy_identity", "coordinates": "released"},
    },
)
_register(
    "variational_capsnet_small",
    summary="Variational Bayes routing with 16 types of capsules, for 32x32 crops of smallNORB.",
    parameters=68_714,
    aliases=("vb_small",),
    types=(8, 16, 16),
)
_register(
    "variational_capsnet_tiny",
    summary="Variational Bayes routing in a single layer, for 32x32 crops of smallNORB.",
    parameters=206_154,
    aliases=("vb_tiny",),
    types=(16,),
)
