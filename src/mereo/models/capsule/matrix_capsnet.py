"""Matrix capsules with EM routing: poses are matrices, and a capsule is active where the votes for it agree.

Source: Hinton, Sabour, Frosst, "Matrix capsules with EM routing", ICLR 2018,
https://openreview.net/forum?id=HJWLfGWRb (not on arXiv). The authors have published no code; public implementations
differ from the paper, see `EMOptions` and `ConvCapsules` for the options under which the network equals them.
Cost at 32x32 with 32 types everywhere: about 0.5 GFLOP an image for the votes of one pass, three passes forward.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn

from mereo.core import Capsules, Grid
from mereo.core.shapes import conv_out, image_size
from mereo.errors import UsageError, check_choice, check_positive
from mereo.layers.capsules import ConvCapsules, PrimaryMatrixCapsules
from mereo.mechanisms.routing.em import EMOptions
from mereo.models.capsule_classifier import CapsuleClassifier
from mereo.models.registry import register_model

STEM_KERNEL = 5


class MatrixCapsNet(CapsuleClassifier):
    """A convolution, primary capsules, two convolutions of capsules and class capsules, with EM routing between them.

    image -> conv 5x5, stride 2 -> primary capsules -> 3x3, stride 2 -> 3x3 -> classes,   scores = their activations

    Args:
        num_classes, in_chans, img_size: as in timm; without padding a side must be at least 25.
        channels: of the first convolution.
        types: kinds of primary capsules and of both convolutions of capsules.
        pose: side of the pose matrices.
        padding: of the first convolution; 2 keeps its map at half the image.
        batch_norm: after the first convolution.
        steps, inverse_temperature, schedule, variance_floor, floor, renormalise, cost_per_children: of EM routing, see
            `mereo.mechanisms.routing.em.EMOptions`.
        compete: the parents of all "positions" compete for a child (the paper), or only those in one "window".
        coordinates: add row and column of a child of the class capsules to two entries of its vote: the first two of
            the right "column" of the matrix (the paper), the first two of the upper "row", or to "none".
        coordinate_offset: added to its row and column before they are divided by the size of the map.

    Shapes: images (batch, in_chans, height, width) -> activations (batch, num_classes) in (0, 1).

    Deviates: a batch normalisation after the first convolution, as in public implementations; the paper names none
        (batch_norm=False). It does not give the padding of the first convolution either. Coordinates are of the
        centre of a cell, from 0 to 1. Images are read as they are; the paper standardises each of them.

    Reference: Hinton, Sabour, Frosst 2018 (ICLR), section 4.
    """

    first_conv = "stem.0"
    channels_last = False
    scores_are_lengths = False
    default_loss = "spread"

    def __init__(
        self,
        num_classes: int = 5,
        in_chans: int = 1,
        img_size: int | tuple[int, int] = 32,
        *,
        channels: int = 32,
        types: tuple[int, int, int] = (32, 32, 32),
        pose: int = 4,
        padding: int = 0,
        batch_norm: bool = True,
        steps: int = 3,
        inverse_temperature: float = 0.01,
        schedule: str = "rising",
        variance_floor: float = 1e-6,
        floor: str = "added",
        renormalise: bool = False,
        cost_per_children: bool = False,
        compete: str = "positions",
        coordinates: str = "column",
        coordinate_offset: float = 0.5,
    ) -> None:
        super().__init__()
        check_positive(channels=channels, types=min(types), pose=pose)
        check_choice("coordinates", coordinates, ("column", "row", "none"))
        self.image_shape = (in_chans, *image_size(img_size))
        self.pose_shape, primary, first, second = (pose, pose), *types
        stem = [nn.Conv2d(in_chans, channels, STEM_KERNEL, 2, padding)]
        self.stem = nn.Sequential(*stem, *([nn.BatchNorm2d(channels)] if batch_norm else []))
        self.feature_info = [{"num_chs": channels, "reduction": 2, "module": "stem"}]
        self.shared_options: dict[str, Any] = {
            "in_pose": self.pose_shape, "compete": compete, "routing": "em",
            "routing_options": EMOptions(
                steps, inverse_temperature, schedule, variance_floor, floor, renormalise, cost_per_children
            )._asdict(),
        }  # fmt: skip
        entries = {"column": (pose - 1, 2 * pose - 1), "row": (0, 1), "none": False}[coordinates]
        self.class_options: dict[str, Any] = {"coordinates": entries, "coordinate_offset": coordinate_offset}
        self.primary = PrimaryMatrixCapsules(channels, primary, self.pose_shape)
        self.first = ConvCapsules(primary, first, 3, 2, **self.shared_options)
        self.second = ConvCapsules(first, second, 3, 1, **self.shared_options)
        self.grids = self._grids(padding)
        *_, last = self.grids
        self.num_features = last.types * last.rows * last.columns * (pose * pose + 1)
        for layer, grid in zip((self.first, self.second), self.grids, strict=False):
            layer.routing.coupling.senders = grid
        self.reset_classifier(num_classes)

    def _grids(self, padding: int) -> list[Grid]:
        """Places of the capsules of each layer, without the class capsules."""
        kinds = (self.primary.types, self.first.out_types, self.second.out_types)
        shapes = zip((STEM_KERNEL, 3, 3), (2, 2, 1), (padding, 0, 0), kinds, strict=True)
        sides, first, step, grids = list(self.image_shape[1:]), 0.5, 1.0, []
        for kernel, stride, margin, types in shapes:
            first += step * ((kernel - 1) / 2 - margin)
            step *= stride
            sides = [conv_out(side, kernel, stride, margin) for side in sides]
            if min(sides) < 1:
                raise UsageError(
                    f"img_size is {self.image_shape[1:]}; nothing is left of such images after the convolutions. Give"
                    f" larger ones{'' if padding else ', or padding=2'}."
                )
            grids.append(Grid(sides[0], sides[1], types, first, step))
        grids[0] = grids[0]._replace(feeds=0, through="second.routing.coupling")
        grids[1] = grids[1]._replace(feeds=0)
        return grids

    def make_classifier(self) -> nn.Module:
        last = self.grids[-1]
        size = (last.rows, last.columns)
        options = self.shared_options | self.class_options
        head = ConvCapsules(last.types, self.num_classes, None, shared=True, size=size, **options)
        head.routing.coupling.senders = last
        return head

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        return self.stem(inputs).relu_()

    def neck(self, maps: list[Tensor]) -> Capsules:
        """The capsules that vote for the classes: pose (batch, types, side, side, rows, columns), activation."""
        return self.second(*self.first(*self.primary(maps[0])))

    def class_capsules(self, features: Capsules) -> Capsules:
        poses, activations = self.head(*features)
        return Capsules(poses.flatten(2), activations.flatten(1))


_register = partial(
    register_model,
    module=MatrixCapsNet,
    source="https://openreview.net/forum?id=HJWLfGWRb",
    recipe="matrix_capsnet_paper",
)

_register(
    "matrix_capsnet_310k",
    summary="Matrix capsules with EM routing and 32 types in every layer, for 32x32 crops of smallNORB.",
    parameters=316_458,
    crop_pct=2 / 3,
    tiny={"img_size": 17, "channels": 6, "types": (2, 3, 3), "pose": 2, "padding": 2, "num_classes": 4},
    variants={
        "public code": {
            "batch_norm": False,
            "compete": "window",
            "coordinates": "row",
            "coordinate_offset": 0.0,
            "schedule": "constant",
            "inverse_temperature": 1e-3,
            "renormalise": True,
            "cost_per_children": True,
            "steps": 2,
        },
    },
)
_register(
    "matrix_capsnet_68k",
    summary="The smaller network of the paper: 8 types of primary capsules, then 16.",
    parameters=67_282,
    channels=64,
    types=(8, 16, 16),
)
