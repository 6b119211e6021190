"""Deletion test: the effect on a class of hiding each part of the image, compared with what the explanation claims.

    fall_s = score_class(image) - score_class(image with part s in the image's mean colour)

An explanation is evidence to the extent that falls and claims agree in rank over the parts of an image.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mereo.core import Grid
from mereo.errors import UsageError
from mereo.explain.observation import normalised, ready
from mereo.explain.occlusion import occlusion_grid
from mereo.explain.places import Box, box_of, spread
from mereo.explain.target import Target, check_finite, check_scores, resolve_target, value_of
from mereo.inference.mode import evaluating
from mereo.models import VisionModel

MOST_PARTS = 64
"""Largest number of parts that are hidden one by one; for a finer map, larger squares are hidden."""
FEWEST_PARTS = 3
"""Least number of parts for a rank correlation."""
_BATCH = 64


@dataclass(frozen=True)
class DeletionTest:
    """The effect of hiding each part, and the effect that an explanation claims.

    Attributes:
        claimed: by the explanation, for each part, (batch, rows, columns).
        falls: of the score of the class when the part is hidden, (batch, rows, columns).
        heat: the falls over the image, (batch, height, width).
        grid: where the parts are.
        correlation: rank correlation (Spearman's) of the two over the parts of each image, (batch,); 0 where one of
            them is the same for all parts.
    """

    claimed: Tensor
    falls: Tensor
    heat: Tensor
    grid: Grid
    correlation: Tensor

    @property
    def parts(self) -> int:
        """Parts of an image."""
        return self.grid.rows * self.grid.columns


def _ranks(values: Tensor) -> Tensor:
    """Ranks within each row; equal values get their mean rank. Shapes: (batch, n) -> float64 (batch, n)."""
    wide = values.double().contiguous()
    ordered = wide.sort(1).values
    first, last = (torch.searchsorted(ordered, wide, right=right) for right in (False, True))
    return (first + last - 1).double() / 2


def rank_correlation(a: Tensor, b: Tensor) -> Tensor:
    """Spearman's rank correlation of each row of two tables, in [-1, 1]; 0 where a row is constant.

    Shapes: (batch, n), (batch, n) -> float64 (batch,).

    Reference: Spearman, American Journal of Psychology 15, 1904.
    """
    if a.shape != b.shape or a.dim() != 2:
        raise UsageError(f"a is {tuple(a.shape)} and b is {tuple(b.shape)}; both must be (batch, n).")
    x, y = (ranks - ranks.mean(1, keepdim=True) for ranks in (_ranks(a), _ranks(b)))
    norm = (x.square().sum(1) * y.square().sum(1)).sqrt()
    return torch.where(norm > 0, (x * y).sum(1) / norm.clamp(min=1e-300), 0.0)


def hidden_scores(model: VisionModel, images: Tensor, boxes: Sequence[Box]) -> Tensor:
    """The scores of the classes with each box of every image replaced by the mean colour of that image.

    Args:
        model: any classifier; it runs in evaluation mode and is left as it was.
        images: in [0, 1], not normalised.
        boxes: in pixels.

    Shapes: images (batch, channels, height, width) -> (batch, boxes, classes).
    """

    def scores(outputs: Tensor) -> Tensor:
        check_scores(model, outputs)
        return outputs

    model, images = ready(model, images)
    return _hidden(model, images, boxes, scores) if boxes else images.new_zeros(len(images), 0, model.num_classes)


@torch.no_grad()
def _hidden(model: VisionModel, images: Tensor, boxes: Sequence[Box], of: Callable[[Tensor], Tensor]) -> Tensor:
    """`of(outputs)` with each box hidden: (batch, boxes, ...)."""
    mean = images.mean((2, 3), keepdim=True)
    height, width = images.shape[-2:]
    rows, columns = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    made = []
    each = max(_BATCH // len(images), 1)
    with evaluating(model):
        for start in range(0, len(boxes), each):
            changed = []
            for box in boxes[start : start + each]:
                down = (rows >= round(box.top)) & (rows < max(round(box.bottom), round(box.top) + 1))
                across = (columns >= round(box.left)) & (columns < max(round(box.right), round(box.left) + 1))
                changed.append(torch.where(down[:, None] & across[None, :], mean, images))
            outputs = model(normalised(model, torch.cat(changed)))
            check_finite(outputs)
            made += [of(part) for part in outputs.unflatten(0, (len(changed), len(images)))]
    return torch.stack(made, 1)


def _pooled(heat: Tensor, boxes: Sequence[Box]) -> Tensor:
    """The mean of a map in each box: (batch, height, width) -> (batch, boxes)."""
    return torch.stack(
        [heat[:, round(b.top) : round(b.bottom), round(b.left) : round(b.right)].mean((1, 2)) for b in boxes], 1
    )


def deletion_test(
    model: VisionModel, images: Tensor, outputs: Tensor, target: Target, claimed: Tensor, grid: Grid
) -> DeletionTest | None:
    """Hide each part of the images in turn, and compare the effect with what an explanation claims.

    For a map with more than 64 parts, squares are hidden, 8 along the shorter side, and the claim is the map's mean
    over each square. None for fewer than 3 parts.

    Args:
        model: any network of images.
        images: in [0, 1], not normalised.
        outputs: of the network for the images.
        target: the class that is explained for each image, or a function from the outputs to (batch,).
        claimed: by the explanation.
        grid: where the parts are.

    Shapes: images (batch, channels, height, width), classes int64 (batch,), claimed (batch, rows, columns).
    """
    height, width = images.shape[-2:]
    if grid.rows * grid.columns > MOST_PARTS:
        coarse = occlusion_grid(height, width)
        boxes = [box_of(cell, coarse, height, width) for cell in range(coarse.rows * coarse.columns)]
        claimed = _pooled(spread(claimed, grid, height, width), boxes).unflatten(1, (coarse.rows, coarse.columns))
        grid = coarse
    if grid.rows * grid.columns < FEWEST_PARTS:
        return None
    boxes = [box_of(cell, grid, height, width) for cell in range(grid.rows * grid.columns)]
    model, images = ready(model, images)
    chosen = resolve_target(model, outputs, target)
    falls = value_of(outputs, chosen)[:, None] - _hidden(model, images, boxes, lambda part: value_of(part, chosen))
    correlation = rank_correlation(claimed.flatten(1), falls)
    cells = falls.unflatten(1, (grid.rows, grid.columns))
    return DeletionTest(claimed, cells, spread(cells, grid, height, width), grid, correlation)
