"""The capsules of MSPCaps on the maps of any backbone, and a linear head on the same maps to compare with.

Source: Hu, Han, Sun, Ren 2025, arXiv:2508.16922, for capsules and routing; to put them on a backbone is ours.
Cost: with three maps of 8, 4 and 2 cells a side, 84 patch capsules whatever the size of the image; the backbone takes
nearly all time and memory.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from mereo.core import Grid
from mereo.core.coupling import Over
from mereo.errors import UsageError, check_choice, check_positive
from mereo.layers.capsules import PatchifyCapsules, UpsamplingDecoder
from mereo.models.base import Features, VisionModel
from mereo.models.multi_scale_capsules import MultiScaleCapsules
from mereo.models.on_backbone import OnBackbone
from mereo.models.registry import register_model

HEADS = ("capsules", "linear")


def _places(sides: tuple[int, int], reduction: int, cells: int) -> Grid:
    """`cells` squares along the shorter side of the image, at most the map's cells, and squares that fit the other."""
    step = min(sides) / min(cells, -(-min(sides) // reduction))
    rows, columns = (max(1, min(round(side / step), -(-side // reduction))) for side in sides)
    step = max(sides[0] / rows, sides[1] / columns)
    return Grid(rows, columns, 1, step / 2, step)


class MSPCapsHead(OnBackbone, MultiScaleCapsules):
    """Multi-scale patch capsules on the maps of a backbone.

    image -> backbone -> maps f1, f2, f3 -> patch capsules u1, u2, u3
    u12 = CAR(u1, u2),   class capsules = CAR(u12, u3),   scores = their lengths

    Args:
        num_classes, in_chans, img_size: as in timm; any size that the backbone takes.
        head: "capsules", or "linear" for a linear classifier of the mean of every map, to compare with: the network is
            then a `LinearHead`, and the arguments of capsules have no effect.
        backbone: one of `mereo.list_models()`, or of timm as "timm:resnet18". `create_model(..., weights="timm")`
            starts it with published weights, `weights=` a run or a file with those.
        out_indices: the stages whose maps are used: one to three, ascending, negative numbers from the end.
        backbone_args: arguments of a backbone of mereo's, such as {"stem_stride": 2}.
        frozen: the backbone keeps its weights and the statistics of its batch norms.
        cells: patches along the shorter side of the image on each map, at most the number of its cells; they fix
            the number of capsules whatever the size of the image.
        pose_dims: pose of the patch capsules of each map.
        mid_dim: pose of the capsules between the two routings; of the class capsules of one or two maps.
        out_dim: pose of the class capsules of three maps.
        share_weights, coupling_over, coupling_drop: as for `MSPCaps`.
        decoder: whether a decoder rebuilds the image from the class capsules.

    Shapes: images (batch, in_chans, height, width) -> lengths (batch, num_classes).

    Deviates: the paper has a backbone of its own and patches of 4 x 4 cells. Here the mean is taken over patches of
        a size that gives `cells` patches a side; poses are larger than in MSPCaps-T, for maps of more channels.

    Reference: arXiv:2508.16922.
    """

    usual_rate = 7e-3

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 224,
        *,
        head: str = "capsules",
        backbone: str = "resnet20_224",
        out_indices: tuple[int, ...] = (-3, -2, -1),
        backbone_args: Mapping[str, Any] = {},
        frozen: bool = False,
        cells: tuple[int, ...] = (8, 4, 2),
        pose_dims: tuple[int, ...] = (16, 16, 32),
        mid_dim: int = 32,
        out_dim: int = 32,
        share_weights: bool = True,
        coupling_over: Over = "senders",
        coupling_drop: float = 0.1,
        decoder: bool = False,
    ) -> None:
        super().__init__()
        check_choice("head", head, HEADS)
        if head != "capsules":
            raise UsageError(f"head is {head!r}; make that network with create_model, or as LinearHead.")
        for argument, values in (("cells", cells), ("pose_dims", pose_dims)):
            if len(values) != len(out_indices):
                raise UsageError(
                    f"{argument} is {values} and out_indices {out_indices}; give {argument} one number for each map."
                )
        if not 1 <= len(out_indices) <= 3:
            raise UsageError(f"out_indices is {out_indices}; capsules take one to three maps.")
        if list(cells) != sorted(cells, reverse=True):
            raise UsageError(f"cells is {cells}; a later map cannot have more patches than an earlier one.")
        check_positive(cells=min(cells), pose_dims=min(pose_dims), mid_dim=mid_dim, out_dim=out_dim)
        self._build_backbone(backbone, out_indices, backbone_args, in_chans, img_size, frozen)
        self.scales, self.out_dim, self.has_decoder = self.neck_inputs, out_dim, decoder
        self.cross_agreement = {"share_weights": share_weights, "over": coupling_over, "dropout": coupling_drop}
        sides, info = self.image_shape[1:], self.feature_info
        self.places = {i: _places(sides, int(info[i]["reduction"]), cells[i]) for i in self.scales}
        self.patchify = nn.ModuleDict()
        for i, place in self.places.items():
            grid = (place.rows, place.columns)
            self.patchify[str(i)] = PatchifyCapsules(int(info[i]["num_chs"]), pose_dims[i], None, grid)
        self.middle = None
        self._build_cross_agreement(dict(enumerate(pose_dims)), mid_dim)
        self.reset_classifier(num_classes)

    @classmethod
    def class_for(cls, arguments: Mapping[str, Any]) -> type[VisionModel]:
        check_choice("head", arguments["head"], HEADS)
        return cls if arguments["head"] == "capsules" else LinearHead

    def make_decoder(self) -> nn.Module | None:
        return UpsamplingDecoder(self.num_classes * self.out_dim, self.image_shape) if self.has_decoder else None


class LinearHead(OnBackbone):
    """A linear classifier of the mean of every map of a backbone, to compare `MSPCapsHead` with.

    Args:
        num_classes, in_chans, img_size, backbone, out_indices, backbone_args, frozen: as for `MSPCapsHead`.
        capsules: the other arguments of `MSPCapsHead`, which have no effect.

    Shapes: images (batch, in_chans, height, width) -> scores (batch, num_classes).
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 224,
        *,
        backbone: str = "resnet20_224",
        out_indices: tuple[int, ...] = (-3, -2, -1),
        backbone_args: Mapping[str, Any] = {},
        frozen: bool = False,
        **capsules: Any,
    ) -> None:
        super().__init__()
        self._build_backbone(backbone, out_indices, backbone_args, in_chans, img_size, frozen)
        self.num_features = sum(int(info["num_chs"]) for info in self.feature_info)
        self.reset_classifier(num_classes)

    def neck(self, maps: list[Tensor]) -> Features:
        return tuple(maps)

    def pool(self, features: tuple[Tensor, ...]) -> Tensor:
        return super().pool(tuple(x.mean((2, 3)) for x in features))

    def make_classifier(self) -> nn.Module:
        return nn.Linear(self.num_features, self.num_classes)


_TINY = {"backbone": "resnet20", "backbone_args": {"widths": (4, 6, 8), "blocks": 1}, "img_size": 16}
register_model(
    "mspcaps_head",
    MSPCapsHead,
    "Multi-scale patch capsules on a backbone, ours or timm's, for images of any size.",
    source="arXiv:2508.16922",
    parameters=447_440,
    recipe="mspcaps_head_digits",
    tiny={**_TINY, "pose_dims": (4, 4, 6), "mid_dim": 6, "out_dim": 5},
    variants={
        "linear": {"head": "linear"},
        "two maps, odd sides, decoder": {
            "out_indices": (0, 2), "cells": (4, 3), "pose_dims": (4, 4), "img_size": (21, 34), "decoder": True
        },
        "one map, unshared": {"out_indices": (2,), "cells": (3,), "pose_dims": (4,), "share_weights": False},
    },
)  # fmt: skip
