"""MSPCaps: capsules from patches of three resolutions, fused from fine to coarse by cross-agreement routing.

Source: Hu, Han, Sun, Ren 2025, arXiv:2508.16922. No code of the authors was found.
Cost at 32x32: about 0.07 GMAC an image for the tiny network, 1.5 for the large one, nearly all in the convolutions.
"""

from typing import Any

import torch
from torch import Tensor, nn

from mereo.capsules import PatchifyCapsules
from mereo.core import grid_groups
from mereo.core.coupling import Over
from mereo.core.shapes import image_size
from mereo.errors import UsageError, check_choice, check_positive
from mereo.models.base import CapsuleClassifier, SenderGrid
from mereo.models.registry import register_model
from mereo.routing import CrossAgreementRouting, DynamicRouting

MOST_DEPTH = 100


class ResidualBlock(nn.Module):
    """conv3x3, BN, ReLU; then depth - 1 times x <- ReLU(x + BN(conv3x3(x))). No convolution has a bias.

    Shapes: (batch, in_channels, height, width) -> (batch, out_channels, height / stride, width / stride).
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, depth: int) -> None:
        super().__init__()

        def convolution(channels: int, stride: int) -> nn.Sequential:
            conv = nn.Conv2d(channels, out_channels, 3, stride, padding=1, bias=False)
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            return nn.Sequential(conv, nn.BatchNorm2d(out_channels))

        self.entry = convolution(in_channels, stride)
        self.units = nn.ModuleList(convolution(out_channels, 1) for _ in range(depth - 1))

    def forward(self, features: Tensor) -> Tensor:
        features = self.entry(features).relu()
        for unit in self.units:
            features = (features + unit(features)).relu()
        return features


class MSPCaps(CapsuleClassifier):
    """Multi-scale patch capsules with cross-agreement routing.

    image -> residual blocks -> feature maps f1, f2, f3 -> patch capsules u1, u2, u3
    u12 = CAR(u1, u2),   class capsules = CAR(u12, u3),   scores = their lengths

    Args:
        num_classes, in_chans, img_size: as in timm; the image may be any size whose coarsest map holds a patch.
        channels: of the three feature maps; the first has the image's size, each next one half of it.
        depth: 3x3 convolutions in a block, the first included.
        pose_dims: pose of the patch capsules of each map.
        mid_dim: pose of the capsules between the two routings.
        out_dim: pose of the class capsules.
        patch_size: side of a patch on every map.
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

    Deviates: the axis of the softmax is not stated in the paper (measurements in `docs/claims.md`). The sizes of the
        dynamic variant are not given; `scale_capsules` of the presets give the reported parameter counts.

    Reference: arXiv:2508.16922.
    """

    order: Tensor
    first_conv = "blocks.0.entry.0"
    classifier = "head"

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
        check_positive(channels=min(channels), pose_dims=min(pose_dims))
        if depth > MOST_DEPTH:
            raise UsageError(f"depth is {depth}; it must be at most {MOST_DEPTH}.")
        scales = tuple(scales)
        if not scales or list(scales) != sorted(set(scales) & {0, 1, 2}):
            raise UsageError(f"scales is {scales}; it must name some of the maps 0, 1, 2, each once and in that order.")
        self.image_shape = (in_chans, *image_size(img_size))
        self.scales, self.routing = scales, routing
        self.out_dim, self.routing_steps = out_dim, routing_steps
        self.patch_size, self.scale_capsules = patch_size, scale_capsules
        self.cross_agreement: dict[str, Any] = {
            "share_weights": share_weights,
            "over": coupling_over,
            "dropout": coupling_drop,
        }
        self.grids = self._grids(patch_size)
        dims = (
            tuple(pose_dims)
            if len(scales) == 3
            else (pose_dims[0],) * 3
            if len(scales) == 1
            else (*[pose_dims[0 if i == scales[0] else 1] for i in range(3)],)
        )
        widths = (in_chans, *channels)
        self.blocks = nn.ModuleList(
            ResidualBlock(widths[i], widths[i + 1], 1 if i == 0 else 2, depth) for i in range(scales[-1] + 1)
        )
        self.patchify = nn.ModuleDict(
            {str(i): PatchifyCapsules(channels[i], dims[i], patch_size, self.grids[i]) for i in scales}
        )
        if routing == "dynamic":
            self._build_dynamic(dims, mid_dim, scale_capsules)
        else:
            self._build_cross_agreement(dims, mid_dim)
        self.reset_classifier(num_classes)

    def _grids(self, patch_size: int) -> list[tuple[int, int]]:
        """Rows and columns of patches on each map used: floor(ceil(side / 2^i) / patch_size)."""
        _, height, width = self.image_shape
        grids = [tuple(-(-side // 2**i) // patch_size for side in (height, width)) for i in range(3)]
        for i in reversed(self.scales):
            if min(grids[i]) < 1:
                sides = tuple(-(-side // 2**i) for side in (height, width))
                raise UsageError(
                    f"img_size is {height} x {width}, so map {i} is {sides[0]} x {sides[1]} (each next map halves the"
                    f" side), which holds no patch of patch_size {patch_size}; take an image of at least"
                    f" {(patch_size - 1) * 2**i + 1} or a smaller patch_size."
                )
        return grids

    def _build_cross_agreement(self, dims: tuple[int, ...], mid_dim: int) -> None:
        """Sizes of what goes into the last routing, and the routing before it where there are three scales."""
        counts = {i: self.grids[i][0] * self.grids[i][1] for i in self.scales}
        self.middle: CrossAgreementRouting | None = None
        if len(self.scales) == 1:
            (only,) = self.scales
            self.head_fine = self.head_coarse = (counts[only], dims[only])
            order = torch.arange(counts[only])
        else:
            fine, coarse = self.scales[:2]
            order = grid_groups(self.grids[fine], self.grids[coarse]).flatten()
            self.head_fine, self.head_coarse = (len(order), dims[fine]), (counts[coarse], dims[coarse])
        if len(self.scales) == 3:
            # The middle capsules have no place of their own, so any grouping under the coarsest ones is as good.
            last = self.scales[2]
            if counts[last] > counts[coarse]:
                raise UsageError(
                    f"{counts[coarse]} middle capsules cannot be grouped under {counts[last]} coarse ones."
                )
            num_middle = counts[coarse] - counts[coarse] % counts[last]
            self.middle = CrossAgreementRouting(
                len(order), counts[coarse], num_middle, dims[fine], dims[coarse], mid_dim, **self.cross_agreement
            )
            self.head_fine, self.head_coarse = (num_middle, mid_dim), (counts[last], dims[last])
        else:
            self.out_dim = mid_dim
        self.register_buffer("order", order, persistent=False)
        self.num_features = sum(n * d for n, d in {"fine": self.head_fine, "coarse": self.head_coarse}.values())
        if len(self.scales) == 1:
            self.num_features //= 2

    def _build_dynamic(self, dims: tuple[int, ...], mid_dim: int, scale_capsules: tuple[int, ...]) -> None:
        self.scale_routings = nn.ModuleDict()
        for i in self.scales:
            count = self.grids[i][0] * self.grids[i][1]
            self.scale_routings[str(i)] = DynamicRouting(
                count, scale_capsules[i], dims[i], mid_dim, steps=self.routing_steps
            )
        self.head_fine = (sum(scale_capsules[i] for i in self.scales), mid_dim)
        self.num_features = self.head_fine[0] * mid_dim

    def make_classifier(self) -> tuple[nn.Module, None]:
        (fine, fine_dim), classes, out_dim = self.head_fine, self.num_classes, self.out_dim
        if self.routing == "dynamic":
            return DynamicRouting(fine, classes, fine_dim, out_dim, steps=self.routing_steps), None
        coarse, coarse_dim = self.head_coarse
        return CrossAgreementRouting(fine, coarse, classes, fine_dim, coarse_dim, out_dim, **self.cross_agreement), None

    def sender_grids(self) -> dict[str, SenderGrid]:
        def grid(scale: int, feeds: int | None = None) -> SenderGrid:
            step = float(self.patch_size * 2**scale)
            return SenderGrid(*self.grids[scale], 1, step / 2, step, feeds)

        if self.num_classes == 0:
            return {}
        if self.routing == "dynamic":
            found, feeds = {}, 0
            for i in self.scales:
                found[f"scale_routings.{i}.coupling"] = grid(i, feeds)
                feeds += self.scale_capsules[i]
            return found
        middle = {} if self.middle is None else {"middle.coupling": grid(self.scales[1], 0)}
        return {**middle, "head.coupling": grid(self.scales[-1])}

    def patch_capsules(self, images: Tensor) -> dict[int, Tensor]:
        """The patch capsules of every map used: {map: (batch, rows * columns, pose)}."""
        self.check_images(images)
        found, features = {}, images
        for i, block in enumerate(self.blocks):
            features = block(features)
            if i in self.scales:
                found[i] = self.patchify[str(i)](features)
        return found

    def forward_features(self, images: Tensor) -> Tensor:
        """What goes into the last routing, flat: (batch, num_features).

        Cross-agreement: the fine capsules, then the coarse ones (with one scale they are the same, and stand once).
        """
        parts = self.patch_capsules(images)
        if self.routing == "dynamic":
            routed = [self.scale_routings[str(i)](capsules) for i, capsules in parts.items()]
            return torch.cat(routed, 1).flatten(1)
        if len(self.scales) == 1:
            return parts[self.scales[0]].flatten(1)
        fine, coarse = parts[self.scales[0]][:, self.order], parts[self.scales[1]]
        if self.middle is not None:
            fine, coarse = self.middle(fine, coarse), parts[self.scales[2]]
        return torch.cat((fine.flatten(1), coarse.flatten(1)), 1)

    def route(self, features: Tensor) -> Tensor:
        if self.routing == "dynamic":
            return self.head(features.unflatten(1, self.head_fine))
        if len(self.scales) == 1:
            capsules = features.unflatten(1, self.head_fine)
            return self.head(capsules, capsules)
        size = self.head_fine[0] * self.head_fine[1]
        return self.head(
            features[:, :size].unflatten(1, self.head_fine), features[:, size:].unflatten(1, self.head_coarse)
        )


register_model(
    "mspcaps_tiny",
    MSPCaps,
    "Multi-scale patch capsules, 344 thousand parameters.",
    paper="arXiv:2508.16922",
    mean=0.5,
    std=0.5,
    recipe="mspcaps_paper",
)
register_model(
    "mspcaps_large",
    MSPCaps,
    "Multi-scale patch capsules, 10.9 million parameters.",
    paper="arXiv:2508.16922",
    mean=0.5,
    std=0.5,
    recipe="mspcaps_paper",
    channels=(128, 256, 512),
    depth=3,
    pose_dims=(16, 32, 64),
    mid_dim=64,
    out_dim=128,
    share_weights=False,
    scale_capsules=(32, 10, 10),
)
