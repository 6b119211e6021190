"""MultiMNIST (arXiv 1710.09829): two overlapping digits of different classes, generated on the fly.

    canvas = digit padded by `pad` on every side, then shifted by whole pixels uniform in +-max_shift, zeros entering
    image = min(1, canvas of the first digit + canvas of the second), the second of another class with its own shift

Both canvases are the targets of reconstruction. Nothing is stored but the base digits.
"""

from typing import Any

import torch
from torch import Tensor

from mereo.data.batch import Batch
from mereo.data.counter import uniform
from mereo.data.geometric import take_window
from mereo.data.images import BatchOptions, Images, ImageSet, crop_corners
from mereo.errors import UsageError
from mereo.runtime.device import copied_to

PAD = 4
MAX_SHIFT = 4


class OverlaidPairs(Images):
    """Pairs of digits. Pair i overlays base digit i mod len(base) with another one.

    With a generator (training), partner and shifts come from it, new in every step. Without (evaluation), they are a
    pure function of (seed, i).

    Args:
        base: single digits; partners come from the same set.
        pad: zeros added on every side, in pixels.
        max_shift: largest shift on each axis, in pixels; beyond `pad` parts of a digit may leave the canvas.
        pairs_per_image: how many pairs start from each base digit; 1000 in the paper.
        seed: of the pairs without a generator.

    Shapes: batches have images (batch, c, h + 2 pad, w + 2 pad), labels (batch, 2), targets (batch, 2, c, ..., ...).
    """

    labels_per_image = 2

    def __init__(
        self, base: ImageSet, *, pad: int = PAD, max_shift: int = MAX_SHIFT, pairs_per_image: int = 1, seed: int = 0
    ) -> None:
        for argument, value, least in (
            ("pad", pad, 0),
            ("max_shift", max_shift, 0),
            ("pairs_per_image", pairs_per_image, 1),
        ):
            if value < least:
                raise UsageError(f"{argument} is {value}; it must be at least {least}.")
        self.base, self.class_names = base, base.class_names
        self.pad, self.max_shift, self.pairs_per_image, self.seed = pad, max_shift, pairs_per_image, seed
        self._positions: Tensor | None = None
        self._labels = base.labels.cpu()
        self._by_class = self._labels.argsort(stable=True)
        self._sizes = torch.bincount(self._labels, minlength=len(self.class_names))
        self._starts = self._sizes.cumsum(0) - self._sizes
        if (self._sizes > 0).sum() < 2:
            raise UsageError("base has digits of fewer than two classes; a pair needs two different ones.")

    def __len__(self) -> int:
        return len(self.base) * self.pairs_per_image if self._positions is None else len(self._positions)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.base.image_shape
        return channels, height + 2 * self.pad, width + 2 * self.pad

    @property
    def strata(self) -> Tensor:
        """The class of the first digit of each pair."""
        return self._labels[self._place(torch.arange(len(self))) % len(self.base)]

    def _like(self, base: ImageSet, positions: Tensor | None) -> "OverlaidPairs":
        settings: dict[str, Any] = {"pad": self.pad, "max_shift": self.max_shift, "seed": self.seed}
        pairs = OverlaidPairs(base, pairs_per_image=self.pairs_per_image, **settings)
        pairs._positions = positions
        return pairs

    def to(self, device: torch.device | str) -> "OverlaidPairs":
        return self._like(self.base.to(device), self._positions)

    def subset(self, indices: Tensor) -> "OverlaidPairs":
        """The same pairs at `indices`; partners still come from the whole base."""
        return self._like(self.base, self._place(indices))

    def _place(self, indices: Tensor) -> Tensor:
        return indices.cpu() if self._positions is None else self._positions[indices.cpu()]

    def _partners(self, first: Tensor, draws: Tensor) -> Tensor:
        """A digit of another class for each, uniform over all of them.

        Shapes: first int64 (n,), draws (n,) in [0, 1) -> int64 (n,).
        """
        labels = self._labels[first]
        sizes, starts = self._sizes[labels], self._starts[labels]
        rank = (draws * (len(self.base) - sizes)).long()
        # In the list sorted by class, what follows the digit's own class moves up over it.
        return self._by_class[torch.where(rank < starts, rank, rank + sizes)]

    def make_batch(self, indices: Tensor, options: BatchOptions) -> Batch:
        """Each digit is augmented separately, before it is shifted and overlaid."""
        augmentation, crop, generator, share, device = options
        count, (_, height, width) = len(indices), self.base.image_shape
        positions = self._place(indices)
        first = positions % len(self.base)
        if generator is None:
            draws = uniform(self.seed, positions, 5)
        else:
            draws = torch.rand(count, 5, dtype=torch.float64, generator=generator)
        pairs = torch.stack([first, self._partners(first, draws[:, 0])], dim=1)
        shifts = (draws[:, 1:] * (2 * self.max_shift + 1)).long().view(count, 2, 2) - self.max_shift
        drawn = [] if augmentation is None else augmentation.draw(2 * count, height, width, generator)
        corners = crop_corners(count, self.image_shape, crop, generator)

        chosen = pairs[share].flatten().to(self.base.images.device)
        singles = copied_to(self.base.images[chosen], device).float() / 255
        labels = copied_to(self.base.labels[chosen], singles.device).view(-1, 2)
        if augmentation is not None:
            parts = [parameters.view(count, 2, -1)[share].flatten(0, 1) for parameters in drawn]
            singles = augmentation.apply(singles, parts)
        # Padding, shift and crop are one window into the digit.
        windows = -self.pad - shifts if corners is None else corners[:, None] - self.pad - shifts
        size = self.image_shape[1:] if corners is None or crop is None else crop
        canvases = take_window(singles, windows[share].flatten(0, 1), size)
        targets = canvases.view(-1, 2, *canvases.shape[1:])
        return Batch(targets.sum(dim=1).clamp(max=1), labels, targets)
