"""The distance of boundaries against loops over pixels, and against MONAI where it is installed."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from mereo.data import Batch
from mereo.tasks.boundary_distance import boundary_distance
from mereo.tasks.segmentation import SegmentationMetrics


def blobs(count: int, side: int = 9) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    noise = torch.nn.functional.avg_pool2d(torch.randn(count, 1, side, side, generator=generator), 3, 1, 1)
    return noise[:, 0] > 0.1


def boundary(mask: Tensor) -> list[tuple[int, int]]:
    height, width = mask.shape

    def inside(y: int, x: int) -> bool:
        return 0 <= y < height and 0 <= x < width and bool(mask[y, x])

    around = ((0, 1), (1, 0), (0, -1), (-1, 0))
    return [
        (y, x)
        for y, x in np.ndindex(height, width)
        if inside(y, x) and not all(inside(y + a, x + b) for a, b in around)
    ]


def by_loops(predicted: Tensor, true: Tensor) -> float:
    edges = boundary(predicted), boundary(true)
    apart = [min(math.dist(p, q) for q in edges[1 - i]) for i in (0, 1) for p in edges[i]]
    return sum(apart) / len(apart)


def test_distances_are_those_of_loops() -> None:
    for predicted, true in blobs(8).view(4, 2, 9, 9):
        assert boundary_distance(predicted, true) == pytest.approx(by_loops(predicted, true))


def test_a_square_beside_itself_moved_by_two_pixels() -> None:
    true, found = torch.zeros(2, 8, 8, dtype=torch.bool)
    true[2:5, 1:4] = True
    found[2:5, 3:6] = True
    assert boundary_distance(true, true) == 0
    # Of the 8 pixels of each edge, three are on the other edge, two at 1 and three at 2.
    assert boundary_distance(found, true) == pytest.approx((3 * 0 + 2 * 1 + 3 * 2) / 8)
    nothing = torch.zeros_like(true)
    assert boundary_distance(nothing, true) == boundary_distance(true, nothing) == math.inf


def test_distances_are_those_of_monai() -> None:
    metrics = pytest.importorskip("monai.metrics")
    predicted, true = blobs(8)[:, None].view(2, 4, 1, 9, 9).double()
    expected = metrics.compute_average_surface_distance(predicted, true, include_background=True, symmetric=True)
    pairs = zip(predicted.bool()[:, 0], true.bool()[:, 0], strict=True)
    assert [boundary_distance(*pair) for pair in pairs] == pytest.approx(expected.flatten().tolist())


def test_a_class_that_only_one_mask_has_is_counted_as_missed() -> None:
    torch.manual_seed(0)
    masks = torch.randint(-1, 3, (5, 4, 4))
    scores = torch.randn(5, 4, 4, 4)
    masks[0][masks[0] == 2] = 0
    metrics = SegmentationMetrics(4)
    metrics.final = True
    for part in (slice(0, 2), slice(2, 5)):
        metrics.update(scores[part], Batch(masks=masks[part]))
    distances, missed = [], []
    for predicted, mask in zip(scores.argmax(1), masks, strict=True):
        predicted[mask < 0] = -1
        for label in (1, 2, 3):
            found, true = predicted == label, mask == label
            if found.any() or true.any():
                missed.append(not (found.any() and true.any()))
            if found.any() and true.any():
                distances.append(by_loops(found, true))
    assert any(missed) and not all(missed)
    values, ranges = metrics.compute(), metrics.intervals()
    assert values["boundary_distance"] == pytest.approx(sum(distances) / len(distances), abs=1e-6)
    assert values["boundary_missed"] == pytest.approx(sum(missed) / len(missed))
    nothing = SegmentationMetrics(4)
    nothing.final = True
    nothing.update(torch.eye(4)[0].view(1, 4, 1, 1).expand(5, 4, 4, 4), Batch(masks=masks))
    found = nothing.compute()
    assert (found["boundary_distance"], found["boundary_missed"]) == (pytest.approx(32**0.5), 1)
    assert ranges.keys() == values.keys()
    assert all(low <= values[name] <= high for name, (low, high) in ranges.items())
