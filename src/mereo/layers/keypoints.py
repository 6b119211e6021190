"""Keypoints of objects, such as centres and corners: a head that scores them, its targets and loss, and their choice.

Source: Chi, Wei, Hu 2020, arXiv:2010.15831, section 4.2 and its released code; Law, Deng 2018, arXiv:1808.01244 (the
radius of a target and the focal loss).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.errors import UsageError, check_count, check_positive

Level = tuple[Tensor, Tensor]
"""Scores as logits (batch, classes, rows, columns) and offsets in cells (batch, 2, rows, columns) of one map."""


def centres(rows: int, columns: int, stride: int, like: Tensor) -> Tensor:
    """x and y in pixels of the cells of a map, stride i + floor(stride / 2), row by row: (rows * columns, 2)."""
    down, across = (torch.arange(n, device=like.device, dtype=torch.float32) * stride for n in (rows, columns))
    grid = torch.meshgrid(down + stride // 2, across + stride // 2, indexing="ij")
    return torch.stack((grid[1].flatten(), grid[0].flatten()), -1)


def convolution(dim: int) -> nn.Sequential:
    """3 x 3, normalised in groups of about 8 channels, 32 groups of 256, ReLU."""
    norm = nn.GroupNorm(math.gcd(dim, max(dim // 8, 1)), dim)
    return nn.Sequential(nn.Conv2d(dim, dim, 3, padding=1, bias=False), norm, nn.ReLU(inplace=True))


class KeypointHead(nn.Module):
    """Score the cells of each map for keypoints of one kind, and place each keypoint beside its cell.

    Args:
        dim: channels of the maps.
        num_classes: channels of scores; 1 for keypoints of any class.
        tower: convolutions before the two branches.
        branch: convolutions of each branch before its last one.

    Shapes: maps (batch, dim, rows, columns) of each level -> (scores, offsets) of each, see `Level`.

    Reference: the released code of arXiv:2010.15831; its configuration for ResNet-50 has 80 classes.
    """

    def __init__(self, dim: int, num_classes: int = 1, *, tower: int = 2, branch: int = 1) -> None:
        super().__init__()
        check_positive(dim=dim, num_classes=num_classes)
        check_count(tower=tower, branch=branch)
        self.tower = nn.Sequential(*(convolution(dim) for _ in range(tower)))
        self.scores, self.offsets = (
            nn.Sequential(*(convolution(dim) for _ in range(branch)), nn.Conv2d(dim, channels, 3, padding=1))
            for channels in (num_classes, 2)
        )
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, std=0.01)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        last: Any = self.scores[-1]
        nn.init.constant_(last.bias, -math.log(99))  # the probability 0.01

    def forward(self, maps: Sequence[Tensor]) -> list[Level]:
        return [(self.scores(x), self.offsets(x)) for x in map(self.tower, maps)]


def corner_radius(sizes: Tensor, overlap: float = 0.7) -> Tensor:
    """How far both corners of a box may be off in pixels so that its IoU stays at least `overlap`.

    The least root of three quadratics: one corner inside and one outside, both inside, both outside.

    Shapes: width and height (..., 2) -> (...).

    Reference: the released code of arXiv:1808.01244, which divides by 2 a.
    """
    total, area = sizes.sum(-1), sizes.prod(-1)
    one = (total - (total**2 - 4 * area * (1 - overlap) / (1 + overlap)).clamp(min=0).sqrt()) / 2
    inside = (2 * total - (4 * total**2 - 16 * area * (1 - overlap)).clamp(min=0).sqrt()) / 8
    outside = ((4 * overlap**2 * total**2 + 16 * overlap * (1 - overlap) * area).sqrt() - 2 * overlap * total) / (
        8 * overlap
    )
    return torch.stack((one, inside, outside)).amin(0)


class KeypointTargets(NamedTuple):
    """Of one map: scores (batch, classes, rows, columns), offsets (batch, 2, rows, columns), positive bool (batch,
    rows, columns), where offsets are known."""

    scores: Tensor
    offsets: Tensor
    positive: Tensor


def keypoint_targets(
    points: Tensor, sizes: Tensor, labels: Tensor, classes: int, shape: tuple[int, int], stride: int
) -> KeypointTargets:
    """A Gaussian around the cell nearest to each point, on every level, and the point's offset from that cell.

    t(cell) = max over objects of exp(-|cell - nearest|^2 / (2 s^2)),   s = (2 r + 1) / 6 of the corner radius r

    Args:
        points, sizes, labels: of the objects: x and y, width and height, in pixels; the class, -1 for no object.
        classes: channels; with 1 all objects count alike.
        shape, stride: rows and columns of the map, and pixels of a cell.

    Deviates: a cell may be near to objects of several classes; the released code keeps the class of the highest peak.

    Shapes: points and sizes (batch, objects, 2), labels int64 (batch, objects).
    """
    batch, known, (rows, columns) = len(labels), labels >= 0, shape
    last = torch.tensor((columns - 1, rows - 1), device=points.device)
    index = ((points - stride // 2) / stride).round().clamp(min=0).minimum(last)
    nearest = index * stride + stride // 2
    cells = centres(rows, columns, stride, points)
    deviation = (2 * corner_radius(sizes) + 1) / 6
    squares = (cells - nearest.unsqueeze(2)).square().sum(-1)  # (batch, objects, cells)
    peaks = (-squares / (2 * deviation.square().unsqueeze(-1))).exp() * known.unsqueeze(-1)
    channel = labels.clamp(min=0) if classes > 1 else torch.zeros_like(labels)
    scores = peaks.new_zeros(batch, classes, rows * columns)
    scores = scores.scatter_reduce(1, channel.unsqueeze(-1).expand(-1, -1, rows * columns), peaks, "amax")
    flat = (index[..., 1] * columns + index[..., 0]).long()
    # Of several points with one nearest cell, that of the smallest object: written last.
    order = sizes.prod(-1).masked_fill(~known, torch.inf).argsort(1, descending=True)
    offsets, positive = points.new_zeros(batch, rows * columns, 2), known.new_zeros(batch, rows * columns)
    every = torch.arange(batch, device=points.device)
    for place in order.unbind(1):
        cell, there = flat[every, place], known[every, place]
        moved = (points[every, place] - nearest[every, place]) / stride
        offsets[every, cell] = torch.where(there.unsqueeze(-1), moved, offsets[every, cell])
        positive[every, cell] |= there
    return KeypointTargets(scores.unflatten(-1, shape), offsets.mT.unflatten(-1, shape), positive.unflatten(-1, shape))


def keypoint_loss(levels: Sequence[Level], targets: Sequence[KeypointTargets]) -> tuple[Tensor, Tensor]:
    """The focal loss of the scores and the smooth L1 loss of the offsets, divided by the number of positive cells.

    -sum_cells (1 - p)^2 log p where t = 1, else (1 - t)^4 p^2 log(1 - p)

    Returns:
        Both losses, (), unweighted; the configurations weigh them 0.25 and 1, the paper 0.05 and 0.2.
    """
    focal = offset = count = levels[0][0].new_zeros((), dtype=torch.float32)
    for (scores, offsets), target in zip(levels, targets, strict=True):
        logits = scores.float()
        p, peak = logits.sigmoid(), target.scores == 1
        missed = -((1 - p) ** 2) * F.logsigmoid(logits)
        false = -((1 - target.scores) ** 4) * p**2 * F.logsigmoid(-logits)
        focal = focal + torch.where(peak, missed, false).sum()
        apart = F.smooth_l1_loss(offsets.float(), target.offsets, reduction="none").sum(1)
        offset, count = offset + (apart * target.positive).sum(), count + target.positive.sum()
    return focal / count.clamp(min=1), offset / count.clamp(min=1)


class Keypoints(NamedTuple):
    """The chosen keypoints: x and y in pixels (batch, keys, 2), the cell of each, counted over all levels, int64
    (batch, keys), their probabilities (batch, keys), and which are keypoints, bool (batch, keys)."""

    places: Tensor
    cells: Tensor
    scores: Tensor
    mask: Tensor


@torch.no_grad()
def select_keypoints(levels: Sequence[Level], strides: Sequence[int], per_level: int = 20, most: int = 50) -> Keypoints:
    """The best local maxima of each level, of 3 x 3 cells and over all classes, then the best of all levels.

    A map with fewer cells gives as many as it has; where fewer are maxima, the mask is False. No gradient: scores and
    offsets have a loss of their own.

    Raises:
        UsageError: unless there is a stride for each level.
    """
    check_positive(per_level=per_level, most=most)
    if len(levels) != len(strides):
        raise UsageError(f"strides is {[*strides]}; there must be one for each of the {len(levels)} levels.")
    found, start = [], 0
    for (scores, offsets), stride in zip(levels, strides, strict=True):
        rows, columns = scores.shape[-2:]
        peaks = scores.masked_fill(scores < F.max_pool2d(scores, 3, stride=1, padding=1), -torch.inf).flatten(1)
        best, index = peaks.topk(min(per_level, peaks.shape[1]), 1)
        cells = index % (rows * columns)
        moved = offsets.float().flatten(2).mT.take_along_dim(cells.unsqueeze(-1), 1) * stride
        found.append((best, cells + start, centres(rows, columns, stride, scores)[cells] + moved))
        start += rows * columns
    values, cells, places = (torch.cat(parts, 1) for parts in zip(*found, strict=True))
    best, order = values.topk(min(most, values.shape[1]), 1)
    kept = places.take_along_dim(order.unsqueeze(-1), 1)
    return Keypoints(kept, cells.take_along_dim(order, 1), best.sigmoid(), best > -torch.inf)
