"""A one-stage detector: at each cell of a pyramid of maps, the classes of an object and where its box ends.

Source: Tian, Shen, Chen, He 2019, arXiv:1904.01355 (FCOS); with bridging, Chi, Wei, Hu 2020, arXiv:2010.15831.
Cost: the backbone's, and 18 D^2 N (2 + tower_layers) multiply-adds for D channels and N cells of all levels.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import bounded
from mereo.errors import UsageError, check_count, check_positive
from mereo.layers.bridge import Bridge
from mereo.layers.keypoints import centres, convolution
from mereo.models.on_backbone import OnBackbone
from mereo.models.registry import register_model

_MOST_LEVELS = 8
"""Coarser levels that may be added: with them one cell is wider than any image."""
_REACH, _LARGEST = 2, 8.0
"""A box starts this many cells from its centre on each side, in the middle of what its level is for; the largest
logarithm of how much wider it may become."""


class Detector(OnBackbone):
    """Place a box around an object at each cell of each level, and score its classes and how central the cell is.

    maps = pyramid(backbone),   c = tower_c(map), r = tower_r(map),   with bridging (c, r) = bridge(maps, c, r)

    box = cell -+ 2 stride exp(s_l conv(r)),   centreness = conv(r),   scores = conv(c)

    Args:
        num_classes: scores of a cell.
        in_chans, img_size: as in timm.
        backbone: a network of the catalogue with maps of stages, or "timm:" and a name of timm's.
        backbone_args: its arguments, beyond channels and size of the images; `stem_stride` is 2 for `resnet20` unless
            it is given.
        stages: of the backbone, whose maps are the finest levels, in ascending order.
        extra_levels: coarser levels, each a convolution of stride 2 of the one before.
        dim: channels of the pyramid and the towers.
        tower_layers: convolutions of each of the two towers, which all levels share.
        bridging: let predicted centres help the classes, and predicted corners the boxes, see `Bridge`.
        bridging_args: other arguments of `Bridge`.
        frozen: keep the weights of the backbone.

    Attributes:
        strides: pixels of a cell of each level.

    Shapes: images (batch, in_chans, height, width) -> (batch, cells, 5 + num_classes), the cells of all levels one
        after the other: left, top, right and bottom in shares of the image, then logits: of being central, of classes.

    Deviates: boxes start 2 cells wide on each side rather than 1; a scale of distances is not clipped.

    Reference: arXiv:1904.01355, section 3; the centreness stands on the tower of the boxes, as in its later version.
    """

    output_kind: ClassVar[str] = "boxes"
    unscored_parts = ("bridge.heads",)  # keypoints are chosen without a gradient, and learn by losses of their own
    usual_rate = 3e-3
    classifier: ClassVar[str] = "head"

    def __init__(
        self,
        num_classes: int = 4,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 64,
        *,
        backbone: str = "resnet20",
        backbone_args: Mapping[str, Any] = {},
        stages: tuple[int, ...] = (-2, -1),
        extra_levels: int = 1,
        dim: int = 32,
        tower_layers: int = 2,
        bridging: bool = False,
        bridging_args: Mapping[str, Any] = {},
        frozen: bool = False,
    ) -> None:
        super().__init__()
        from torchvision.ops import FeaturePyramidNetwork  # not with the package: it takes a second

        check_positive(dim=dim)
        check_count(extra_levels=extra_levels, tower_layers=tower_layers)
        if extra_levels > _MOST_LEVELS:
            raise UsageError(
                f"extra_levels is {extra_levels}; at most {_MOST_LEVELS} are allowed, since each halves the map."
            )
        if backbone == "resnet20":
            backbone_args = {"stem_stride": 2, **backbone_args}
        self._build_backbone(backbone, tuple(stages), backbone_args, in_chans, img_size, frozen)
        info, self.num_features = self.feature_info, dim
        first = [int(stage["reduction"]) for stage in info]
        self.strides = (*first, *(first[-1] * 2**i for i in range(1, extra_levels + 1)))
        self.pyramid = FeaturePyramidNetwork([int(stage["num_chs"]) for stage in info], dim)
        self.coarser = nn.ModuleList(nn.Conv2d(dim, dim, 3, stride=2, padding=1) for _ in range(extra_levels))
        self.classing, self.placing = (
            nn.Sequential(*(convolution(dim) for _ in range(tower_layers))) for _ in range(2)
        )
        self.bridge = Bridge(dim, **{"num_heads": 4, "cells": 65, "branch": 0, **bridging_args}) if bridging else None
        self.distances, self.central = nn.Conv2d(dim, 4, 3, padding=1), nn.Conv2d(dim, 1, 3, padding=1)
        self.scales = nn.Parameter(torch.ones(len(self.strides)))
        for layer in (self.distances, self.central):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        self.reset_classifier(num_classes)

    def neck(self, maps: list[Tensor]) -> tuple[Tensor, ...]:
        """The levels of the pyramid, the finest first: (batch, dim, rows, columns) each."""
        levels = list(self.pyramid(OrderedDict((str(i), level) for i, level in enumerate(maps))).values())
        for layer in self.coarser:
            levels.append(layer(F.relu(levels[-1])))
        return tuple(map(bounded, levels))  # so that the variance in a norm stays finite

    def pool(self, features: Any) -> Tensor:
        return torch.stack([level.mean((2, 3)) for level in features]).mean(0)

    def make_classifier(self) -> nn.Module:
        head = nn.Conv2d(self.num_features, self.num_classes, 3, padding=1)
        nn.init.normal_(head.weight, std=0.01)
        nn.init.constant_(head.bias, -math.log(99))  # type: ignore[arg-type]
        return head

    def cells(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """For images of a size, x and y of all cells in pixels, (cells, 2), and their strides, (cells,)."""
        sizes = [[-(-side // self.strides[0]) for side in (height, width)]]
        for before, stride in zip(self.strides, self.strides[1:], strict=False):
            sizes.append([-(-side // (stride // before)) for side in sizes[-1]])
        placed = [centres(h, w, stride, self.scales) for (h, w), stride in zip(sizes, self.strides, strict=True)]
        return torch.cat(placed), torch.cat(
            [x.new_full((len(x),), s) for x, s in zip(placed, self.strides, strict=True)]
        )

    def classify(self, features: Any) -> Tensor:
        classing, placing = [self.classing(x) for x in features], [self.placing(x) for x in features]
        if self.bridge is not None:
            classing, placing = self.bridge(features, classing, placing, self.strides)
        rows = []
        height, width = self.image_shape[1:]
        for level, (c, r, stride) in enumerate(zip(classing, placing, self.strides, strict=True)):
            near = _REACH * stride * (self.scales[level] * self.distances(r)).clamp(max=_LARGEST).exp().flatten(2).mT
            middle = centres(r.shape[2], r.shape[3], stride, r).to(r.dtype)
            corners = torch.cat((middle - near[..., :2], middle + near[..., 2:]), -1)
            shares = corners / corners.new_tensor((width, height, width, height))
            rows.append(torch.cat((shares, self.central(r).flatten(2).mT, self.head(c).flatten(2).mT), -1))
        return torch.cat(rows, 1)


register_model(
    "detector_small",
    Detector,
    "One-stage detector on a residual network of 20 layers, for images of 64x64.",
    source="arXiv:1904.01355",
    parameters=339_676,
    tiny={"backbone_args": {"widths": (4, 6, 8), "blocks": 1}, "img_size": 32, "dim": 8, "tower_layers": 1},
    variants={"bridging": {"bridging": True, "bridging_args": {"most": 6, "cells": 9, "num_heads": 2}}},
)
register_model(
    "detector_bridged",
    Detector,
    "The same detector with bridging by predicted centres and corners (RelationNet++).",
    source="arXiv:2010.15831",
    parameters=412_685,
    bridging=True,
)
