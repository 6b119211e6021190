"""Patch capsules of several maps, fused from fine to coarse: what MSPCaps and the capsule head on a backbone share.

Source: Hu, Han, Sun, Ren 2025, arXiv:2508.16922.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from mereo.core import Grid, grid_groups
from mereo.errors import UsageError
from mereo.layers.capsules import PatchifyCapsules
from mereo.mechanisms.routing import CrossAgreementRouting
from mereo.models.base import Features
from mereo.models.capsule_classifier import CapsuleClassifier


class LastParts(NamedTuple):
    """The capsules that enter the last routing: fine (batch, fine, pose), coarse (batch, coarse, pose)."""

    fine: Tensor
    coarse: Tensor


class MultiScaleCapsules(CapsuleClassifier):
    """Class capsules from the patches of one to three maps, by cross-agreement routing from fine to coarse.

    u12 = CAR(u1, u2),   class capsules = CAR(u12, u3),   scores = their lengths

    A subclass makes `patchify`, a `PatchifyCapsules` for each scale, and calls `_build_cross_agreement`.

    Attributes:
        scales: numbers of the maps used, ascending.
        places: the positions of each scale's patches on the image.
        patchify: makes the patch capsules, by the number of the scale as text.
        middle: the routing before the last one, with three scales only.
        cross_agreement: options of every routing.
        out_dim: pose of the class capsules.

    Reference: arXiv:2508.16922.
    """

    order: Tensor
    scales: tuple[int, ...]
    places: Mapping[int, Grid]
    patchify: nn.ModuleDict
    middle: CrossAgreementRouting | None
    cross_agreement: Mapping[str, Any]
    out_dim: int

    def _build_cross_agreement(self, dims: Mapping[int, int], mid_dim: int) -> None:
        """Store the sizes of what the last routing reads; with three scales, make the routing before it."""
        fine, coarse = self.scales[0], self.scales[:2][-1]
        grids = {i: (place.rows, place.columns) for i, place in self.places.items()}
        counts = {i: rows * columns for i, (rows, columns) in grids.items()}
        order = grid_groups(grids[fine], grids[coarse]).flatten()
        self.register_buffer("order", order, persistent=False)
        self.head_fine, self.head_coarse = (len(order), dims[fine]), (counts[coarse], dims[coarse])
        if len(self.scales) < 3:
            self.out_dim = mid_dim
        else:
            # The middle capsules have no place of their own, so any grouping under the coarsest ones is as good.
            count, last = counts[coarse], self.scales[2]
            if counts[last] > count:
                raise UsageError(f"{count} middle capsules cannot be grouped under {counts[last]} coarse ones.")
            num_middle = count - count % counts[last]
            self.middle = CrossAgreementRouting(
                len(order), count, num_middle, dims[fine], dims[coarse], mid_dim, **self.cross_agreement
            )
            self.middle.coupling.senders = self.places[coarse]._replace(feeds=0)
            self.middle.fine_grid, self.middle.fine_cells = self.places[fine], order
            self.head_fine, self.head_coarse = (num_middle, mid_dim), (counts[last], dims[last])
        sizes = [self.head_fine, self.head_coarse][: len(self.scales)]
        self.num_features = sum(capsules * pose for capsules, pose in sizes)

    def make_classifier(self) -> nn.Module:
        (fine, fine_dim), classes, out_dim = self.head_fine, self.num_classes, self.out_dim
        coarse, coarse_dim = self.head_coarse
        head = CrossAgreementRouting(fine, coarse, classes, fine_dim, coarse_dim, out_dim, **self.cross_agreement)
        head.coupling.senders = self.places[self.scales[-1]]
        if len(self.scales) == 2:
            head.fine_grid, head.fine_cells = self.places[self.scales[0]], self.order
        return head

    def no_weight_decay(self) -> set[str]:
        return {f"patchify.{i}.position" for i in self.scales}

    def _patches(self, maps: Iterable[Tensor]) -> dict[int, Tensor]:
        return {i: self._patchify(i)(features) for i, features in zip(self.scales, maps, strict=True)}

    def _patchify(self, scale: int) -> PatchifyCapsules:
        return self.patchify[str(scale)]  # type: ignore[return-value]

    def patch_capsules(self, images: Tensor) -> dict[int, Tensor]:
        """The patch capsules of every map used: {map: (batch, rows * columns, pose)}."""
        maps = self._maps(images, self.scales)
        return self._patches(maps[i] for i in self.scales)

    def neck(self, maps: list[Tensor]) -> Features:
        """The input of the last routing.

        Shapes: -> `LastParts` from two or three scales; (batch, capsules, pose) from one.
        """
        fine, *coarser = self._patches(maps).values()
        if not coarser:
            return fine
        fine = fine[:, self.order]
        return LastParts(fine if self.middle is None else self.middle(fine, coarser[0]), coarser[-1])

    def route(self, features: Tensor | LastParts) -> Tensor:
        return self.head(features, features) if isinstance(features, Tensor) else self.head(*features)
