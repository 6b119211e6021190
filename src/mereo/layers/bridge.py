"""Bridging in a one-stage detector: keypoints of the maps help the two branches that class and place the boxes.

Source: Chi, Wei, Hu 2020, arXiv:2010.15831 (RelationNet++), sections 3 and 4.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mereo.core import AddedLoss
from mereo.layers.keypoints import KeypointHead, Level, centres, keypoint_loss, keypoint_targets, select_keypoints
from mereo.mechanisms.attention import BridgingAttention

CENTRES, CORNERS = "centre", ("top left", "bottom right")
KINDS = (CENTRES, *CORNERS)

HOSTS: Mapping[str, Mapping[str, Any]] = {
    "retinanet_r50": {"cells": 401},
    "retinanet_x101": {"cells": 301},
    "fcos_x101": {"cells": 301},
    "atss_x101": {"cells": 301, "share_location": True},
}
"""Arguments of `Bridge` in the released configurations, for 256 channels and 80 classes; all have log_scale,
exact=False and unit=8, 20 keys of a level and 50 in all."""


class Bridge(nn.Module):
    """Let the centres of objects help to class the cells, and their corners help to place the boxes.

    Args:
        dim: channels of the maps and of both branches.
        num_classes: of the keypoints' scores; 1 for keypoints of any class, as the paper describes.
        num_heads: of the attention.
        cells, log_scale, exact: of the location tables, see `LocationTable`.
        share_location: whether the two branches share one table.
        per_level, most: keypoints of a kind that are taken from each level, and of all of them.
        unit: pixels of a cell of the tables on every level; None for half the stride of the level, as the paper.
        tower, branch: convolutions of the keypoint heads.
        weights: of the two losses of the keypoints, "keypoint_scores" and "keypoint_offsets", in training.

    Attributes:
        chosen: the keypoints of the last pass, by kind, without gradients.

    Shapes: maps, classing and placing (batch, dim, rows, columns) of each level -> classing and placing, the same.

    Reference: arXiv:2010.15831, sections 3.2 to 4.2, fig. 2.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int = 1,
        num_heads: int = 8,
        *,
        cells: int | None = 401,
        log_scale: bool = False,
        exact: bool = True,
        share_location: bool = False,
        per_level: int = 20,
        most: int = 50,
        unit: float | None = None,
        tower: int = 2,
        branch: int = 1,
        weights: tuple[float, float] = (0.25, 1.0),
    ) -> None:
        super().__init__()
        self.num_classes, self.per_level, self.most, self.unit = num_classes, per_level, most, unit
        self.heads = nn.ModuleList(KeypointHead(dim, num_classes, tower=tower, branch=branch) for _ in KINDS)
        table: dict[str, Any] = {"cells": cells, "log_scale": log_scale, "exact": exact}
        self.classing = BridgingAttention(dim, num_heads, 1, **table)
        shared = self.classing.location if share_location else None
        self.placing = BridgingAttention(dim, num_heads, len(CORNERS), location=shared, **table)
        self.losses = nn.ModuleList(
            AddedLoss(f"keypoint_{name}", weight) for name, weight in zip(("scores", "offsets"), weights, strict=True)
        )
        self.scored: list[list[Level]] = []
        self.chosen: dict[str, Any] = {}

    def forward(
        self, maps: Sequence[Tensor], classing: Sequence[Tensor], placing: Sequence[Tensor], strides: Sequence[int]
    ) -> tuple[list[Tensor], list[Tensor]]:
        shapes, like = [(level.shape[-2], level.shape[-1]) for level in maps], maps[0]
        scored = [head(maps) for head in self.heads]
        # In training the maps are kept until `add_losses` compares them with the objects of the batch.
        self.scored = scored if self.training else []
        keys = [select_keypoints(levels, strides, self.per_level, self.most) for levels in scored]
        self.chosen = dict(zip(KINDS, keys, strict=True))
        placed = [centres(*shape, stride, like) for shape, stride in zip(shapes, strides, strict=True)]
        units = torch.cat([x.new_full((len(x),), self.unit or s / 2) for x, s in zip(placed, strides, strict=True)])
        places = torch.cat(placed).expand(len(like), -1, -1)
        helped = []
        for attention, levels, kinds in ((self.classing, classing, keys[:1]), (self.placing, placing, keys[1:])):
            queries = torch.cat([level.flatten(2) for level in levels], 2).mT
            features = torch.stack([queries.take_along_dim(key.cells.unsqueeze(-1), 1) for key in kinds], 1)
            key_places, mask = (
                torch.stack(parts, 1) for parts in zip(*[(k.places, k.mask) for k in kinds], strict=True)
            )
            out = attention(features, queries, key_places, places, units, mask)
            split = out.mT.split([rows * columns for rows, columns in shapes], 2)
            helped.append([part.unflatten(2, shape) for part, shape in zip(split, shapes, strict=True)])
        return helped[0], helped[1]

    def add_losses(self, boxes: Tensor, labels: Tensor, strides: Sequence[int]) -> None:
        """Compare the maps of the last pass in training with the keypoints of the objects.

        Shapes: boxes (batch, objects, 4), corners in pixels; labels int64 (batch, objects), -1 for no object.
        """
        first, last = boxes.split(2, -1)
        totals = []
        for levels, points in zip(self.scored, ((first + last) / 2, first, last), strict=False):
            targets = [
                keypoint_targets(
                    points, last - first, labels, self.num_classes, (scores.shape[-2], scores.shape[-1]), stride
                )
                for (scores, _), stride in zip(levels, strides, strict=True)
            ]
            totals.append(torch.stack(keypoint_loss(levels, targets)))
        if totals:
            for loss, total in zip(self.losses, torch.stack(totals).sum(0), strict=True):
                loss(total)
        self.scored = []
