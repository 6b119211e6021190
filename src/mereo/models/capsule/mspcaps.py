"""MSPCaps: capsules from patches of three resolutions, fused from fine to coarse by cross-agreement routing.

Source: Hu, Han, Sun, Ren 2025, arXiv:2508.16922. The authors have not published code, as far as we know.
Cost at 32x32: about 0.07 GMAC an image for the tiny network, 1.5 for the large one, nearly all in the convolutions.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mereo.core import Grid, grid_groups
from mereo.core.coupling import Over
from mereo.core.shapes import image_size
from mereo.errors import UsageError, check_choice, check_positive, check_steps
from mereo.layers.capsules import PatchifyCapsules, ResidualBlock, patch_grids
from mereo.mechanisms.routing import DynamicRouting
from mereo.models.base import Features
from mereo.models.capsule_sizes import Grids, cells, resize_routings
from mereo.models.multi_scale_capsules import LastParts, MultiScaleCapsules
from mereo.models.registry import register_model

MOST_DEPTH = 100
SMALL = 64
"""Sides below which the first map has the image's size."""
PATCHES = 16
"""Patches along a side of the first map below which it is not made smaller."""
REDUCTIONS = (1, 2, 4, 8, 16, 32, 64)
MOST = REDUCTIONS[-1]


class MSPCaps(MultiScaleCapsules):
    """Multi-scale patch capsules with cross-agreement routing.

    image -> residual blocks -> feature maps f1, f2, f3 -> patch capsules u1, u2, u3
    u12 = CAR(u1, u2),   class capsules = CAR(u12, u3),   scores = their lengths

    Args:
        num_classes, in_chans, img_size: as in timm; the image may be any size whose coarsest map holds a patch. Where
            it holds a single one, as below 29 pixels with patches of 4, couplings to the classes over senders are 1.
        channels: of the three feature maps; the first has the image's size, each next one half of it.
        depth: 3x3 convolutions in a block, the first included.
        pose_dims: pose of the patch capsules of each map.
        mid_dim: pose of the capsules between the two routings.
        out_dim: pose of the class capsules.
        patch_size: side of a patch on every map.
        stem_reduction: how many times the sides of the first map are smaller than the image's, a power of two up to
            64. None follows the image: the least that leaves sides below 64, or of fewer than 16 patches, where its
            shorter side allows that; so 1 up to 63 pixels, 2 up to 127, 4 up to 255. It adds no weights.
        share_weights: fine capsules vote with the matrices of the coarse ones above them.
        scales: indices of the feature maps used, ascending. With fewer than three there is one routing, of the sizes
            of the first; with one, its capsules are both fine and coarse.
        routing: "cross_agreement", or "dynamic": dynamic routing of every scale by itself, outputs side by side, and
            one more on top.
        coupling_over: axis of the softmax of cross-agreement, "senders" or "receivers".
        coupling_drop: dropout on couplings in training.
        routing_steps: passes of dynamic routing.
        scale_capsules: with "dynamic", how many capsules each map is routed to.

    Shapes: images (batch, in_chans, height, width) -> lengths (batch, num_classes).

    Deviates: the paper's images have sides of at most 32, and the first map has their size. For images with a side of
        64 or more the first convolution has stride 2 and the maximum over 3x3 cells halves its map further, as in the
        stem of a ResNet (arXiv:1512.03385); at 224 x 224 the first map would otherwise have 50,176 cells and the
        routings 80 million weights. The axis of the softmax is not stated in the paper (measurements in
        `papers/mspcaps/claims.md`). The sizes of the dynamic variant are not given; `scale_capsules` of the presets
        give the reported parameter counts.

    Reference: arXiv:2508.16922.
    """

    first_conv = "blocks.0.entry.0"

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 32,
        *,
        channels: tuple[int, int, int] = (32, 64, 128),
        depth: int = 2,
        pose_dims: tuple[int, int, int] = (8, 8, 16),
        mid_dim: int = 16,
        out_dim: int = 32,
        patch_size: int = 4,
        stem_reduction: int | None = None,
        share_weights: bool = True,
        scales: tuple[int, ...] = (0, 1, 2),
        routing: str = "cross_agreement",
        coupling_over: Over = "senders",
        coupling_drop: float = 0.1,
        routing_steps: int = 3,
        scale_capsules: tuple[int, int, int] = (4, 16, 4),
    ) -> None:
        super().__init__()
        check_choice("routing", routing, ("cross_agreement", "dynamic"))
        check_positive(patch_size=patch_size, depth=depth, mid_dim=mid_dim, out_dim=out_dim)
        check_steps(routing_steps=routing_steps)
        if stem_reduction is not None and stem_reduction not in REDUCTIONS:
            raise UsageError(f"stem_reduction is {stem_reduction!r}; it must be None or one of {REDUCTIONS}.")
        check_positive(channels=min(channels), pose_dims=min(pose_dims))
        if depth > MOST_DEPTH:
            raise UsageError(f"depth is {depth}; it must be at most {MOST_DEPTH}.")
        scales = tuple(scales)
        if not scales or list(scales) != sorted(set(scales) & {0, 1, 2}):
            raise UsageError(f"scales is {scales}; it must name some of the maps 0, 1, 2, each once and in that order.")
        self.image_shape = (in_chans, *image_size(img_size))
        self.scales = self.neck_inputs = scales
        self.routing, self.out_dim, self.routing_steps = routing, out_dim, routing_steps
        self.patch_size, self.scale_capsules = patch_size, scale_capsules
        options: dict[str, Any] = {"share_weights": share_weights, "over": coupling_over, "dropout": coupling_drop}
        self.cross_agreement = options
        self.stem_reduction = stem_reduction
        reduction = self._reduction(self.image_shape[1:])
        self.grids = patch_grids(self.image_shape[1:], patch_size, scales, reduction)
        step = float(patch_size * reduction)
        self.places = {i: Grid(*self.grids[i], 1, step * 2**i / 2, step * 2**i) for i in scales}
        dims = dict(zip(scales, pose_dims, strict=False))
        widths, stages = (in_chans, *channels), range(scales[-1] + 1)
        strides, pools = [min(reduction, 2), 2, 2], [max(reduction.bit_length() - 2, 0), 0, 0]
        self.blocks = nn.ModuleList(
            ResidualBlock(widths[i], widths[i + 1], strides[i], depth, pools[i]) for i in stages
        )
        self.feature_info = [
            {"num_chs": channels[i], "reduction": reduction * 2**i, "module": f"blocks.{i}"} for i in stages
        ]
        self.patchify = nn.ModuleDict(
            {str(i): PatchifyCapsules(channels[i], dims[i], patch_size, self.grids[i]) for i in scales}
        )
        self.middle = None
        if routing == "dynamic":
            self._build_dynamic(dims, mid_dim)
        else:
            self._build_cross_agreement(dims, mid_dim)
        self.reset_classifier(num_classes)

    def _reduction(self, sides: tuple[int, int]) -> int:
        """How many times the first map is smaller than images of a height and width."""
        if self.stem_reduction is not None:
            return self.stem_reduction
        largest, step = max(SMALL, PATCHES * self.patch_size), self.patch_size * 2 ** self.scales[-1]
        wanted = next(reduction for reduction in REDUCTIONS if max(sides) < largest * reduction or reduction == MOST)
        # The last map of a long image still holds a patch.
        return next(r for r in reversed(REDUCTIONS) if r <= wanted and (r == 1 or min(sides) >= r * step))

    def resize_tensors(self, tensors: dict[str, Tensor], img_size: tuple[int, int]) -> dict[str, Tensor]:
        """With positions and routings moved from the patches of another image size; dynamic routing stays as it is."""
        known = [len(tensors.get(f"patchify.{i}.position", ())) for i in self.scales]
        new = [self.grids[i] for i in self.scales]
        for reduction in (self._reduction(img_size), 1):  # 1: of files older than `stem_reduction`
            grids = patch_grids(img_size, self.patch_size, self.scales, reduction)
            old = [grids[i] for i in self.scales]
            if known == list(map(cells, old)):
                break
        if self.routing == "dynamic" or old == new or known != list(map(cells, old)):
            return tensors
        members = self._members(old), self._members(new)
        return resize_routings(
            tensors, Grids(old, new), self.scales, members, self.cross_agreement["over"] != "senders"
        )

    @staticmethod
    def _members(grids: Sequence[tuple[int, int]]) -> list[int]:
        """Number of capsules under a cell, in each routing."""
        if len(grids) == 1:
            return [1]
        under = grid_groups(grids[0], grids[1]).shape[1]
        return [under] if len(grids) == 2 else [under, cells(grids[1]) // cells(grids[2])]

    @classmethod
    def older_arguments(cls, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Files written before there was `stem_reduction` have maps of the image's size."""
        try:
            size = image_size(arguments.get("img_size", 32))
        except UsageError:  # refused with the name of the file, as all arguments are
            return {}
        return {} if "stem_reduction" in arguments or max(size) < SMALL else {"stem_reduction": 1}

    def _build_dynamic(self, dims: dict[int, int], mid_dim: int) -> None:
        """A routing for each scale, whose outputs stand side by side."""
        self.scale_routings, feeds = nn.ModuleDict(), 0
        for i in self.scales:
            count, steps = self.scale_capsules[i], self.routing_steps
            rows, columns = self.grids[i]
            routing = DynamicRouting(rows * columns, count, dims[i], mid_dim, steps=steps)
            routing.coupling.senders = self.places[i]._replace(feeds=feeds)
            self.scale_routings[str(i)] = routing
            feeds += count
        self.head_fine = (sum(self.scale_capsules[i] for i in self.scales), mid_dim)
        self.num_features = self.head_fine[0] * mid_dim

    def make_classifier(self) -> nn.Module:
        if self.routing == "dynamic":
            (fine, fine_dim), classes = self.head_fine, self.num_classes
            return DynamicRouting(fine, classes, fine_dim, self.out_dim, steps=self.routing_steps)
        return super().make_classifier()

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        return self.blocks[index](inputs)

    def neck(self, maps: list[Tensor]) -> Features:
        """The input of the last routing.

        Shapes: -> `LastParts` from two or three scales; (batch, capsules, pose) from one, or with dynamic routing.
        """
        if self.routing != "dynamic":
            return super().neck(maps)
        parts = self._patches(maps)
        return torch.cat([self.scale_routings[str(i)](capsules) for i, capsules in parts.items()], 1)

    def route(self, features: Tensor | LastParts) -> Tensor:
        if self.routing != "dynamic":
            return super().route(features)
        return self.head(features)


_register = partial(
    register_model, module=MSPCaps, source="arXiv:2508.16922", mean=0.5, std=0.5, recipe="mspcaps_paper"
)

_register(
    "mspcaps_tiny",
    summary="Multi-scale patch capsules, 344 thousand parameters.",
    parameters=344_320,
    tiny={"channels": (4, 6, 8), "img_size": 16, "patch_size": 2, "depth": 1},
    variants={
        "unshared, over receivers": {"share_weights": False, "pose_dims": (4, 6, 8), "coupling_over": "receivers"},
        "dynamic": {"routing": "dynamic", "routing_steps": 2, "scale_capsules": (2, 4, 2)},
        "one scale": {"scales": (1,), "depth": 2},
        "reduced": {"img_size": (64, 70), "channels": (4, 4, 4)},
        "two scales, odd sides": {"scales": (0, 2), "img_size": (17, 23)},
    },
)
_register(
    "mspcaps_large",
    summary="Multi-scale patch capsules, 10.9 million parameters.",
    parameters=10_932_944,
    channels=(128, 256, 512),
    depth=3,
    pose_dims=(16, 32, 64),
    mid_dim=64,
    out_dim=128,
    share_weights=False,
    scale_capsules=(32, 10, 10),
)
