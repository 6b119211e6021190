"""Keypoints: the count of the head, worked radii, targets against loops, their loss, and the choice of peaks."""

import math

import pytest
import torch
import torch.nn.functional as F

from mereo.errors import UsageError
from mereo.layers.keypoints import (
    KeypointHead,
    KeypointTargets,
    centres,
    corner_radius,
    keypoint_loss,
    keypoint_targets,
    select_keypoints,
)


def test_the_head_has_the_parameters_of_the_released_configuration_and_starts_at_one_percent() -> None:
    assert sum(p.numel() for p in KeypointHead(256, 80).parameters()) == 2_550_354
    head = KeypointHead(8, 3)
    (scores, offsets), (smaller, _) = head([torch.zeros(2, 8, 6, 5), torch.zeros(2, 8, 3, 2)])
    assert scores.shape == (2, 3, 6, 5) and offsets.shape == (2, 2, 6, 5) and smaller.shape == (2, 3, 3, 2)
    torch.testing.assert_close(scores.sigmoid(), torch.full_like(scores, 0.01))


def test_the_radius_is_the_least_of_the_three_released_roots() -> None:
    size = torch.tensor([[100.0, 50.0]], dtype=torch.float64)
    assert corner_radius(size).item() == pytest.approx(5.387, abs=5e-4)
    total, area = 150.0, 5000.0
    roots = (
        (total - math.sqrt(total**2 - 4 * area * 0.3 / 1.7)) / 2,
        (2 * total - math.sqrt(4 * total**2 - 16 * area * 0.3)) / 8,
        (-1.4 * total + math.sqrt((1.4 * total) ** 2 + 11.2 * 0.3 * area)) / 5.6,
    )
    assert roots == pytest.approx((6.133, 5.387, 6.568), abs=5e-4)


def test_targets_follow_their_equation_with_the_smaller_object_where_two_share_a_cell() -> None:
    points = torch.tensor([[[21.0, 30.0], [24.0, 24.0], [23.0, 29.0], [9.0, 9.0]]], dtype=torch.float64)
    sizes = torch.tensor([[[40.0, 20.0], [60.0, 60.0], [10.0, 10.0], [5.0, 5.0]]], dtype=torch.float64)
    labels = torch.tensor([[0, 1, 1, -1]])
    target = keypoint_targets(points, sizes, labels, 2, (5, 6), 8)
    cells = centres(5, 6, 8, points).double()
    for label in range(2):
        for place, cell in enumerate(cells):
            peak = 0.0
            for point, size, known in zip(points[0], sizes[0], labels[0], strict=True):
                nearest = min(cells.tolist(), key=lambda each: math.dist(each, point.tolist()))
                sigma = (2 * corner_radius(size).item() + 1) / 6
                if known == label:
                    peak = max(peak, math.exp(-(math.dist(cell.tolist(), nearest) ** 2) / (2 * sigma**2)))
            assert target.scores[0, label].flatten()[place].item() == pytest.approx(peak, abs=1e-9)
    assert target.positive[0].nonzero().tolist() == [[2, 2], [3, 2]]
    # (21, 30) and (23, 29) lie nearest to the cell (20, 28); the smaller one gives its offset.
    assert target.offsets[0, :, 3, 2].tolist() == [0.375, 0.125]
    alone = keypoint_targets(points[:, :1], sizes[:, :1], labels[:, :1], 2, (5, 6), 8)
    assert alone.offsets[0, :, 3, 2].tolist() == [0.125, 0.25] and alone.positive.sum() == 1
    wide = keypoint_targets(points[:, :1], sizes[:, :1], labels[:, :1], 2, (3, 3), 16)
    assert wide.offsets[0, :, 1, 1].tolist() == [-0.1875, 0.375]


def test_the_loss_is_the_focal_loss_and_smooth_l1_of_positive_cells() -> None:
    scores, offsets = torch.randn(1, 1, 2, 2), torch.randn(1, 2, 2, 2)
    peaks = torch.tensor([[[[1.0, 0.5], [0.0, 0.2]]]])
    moved, positive = torch.rand(1, 2, 2, 2), torch.tensor([[[True, False], [False, False]]])
    focal, offset = keypoint_loss([(scores, offsets)], [KeypointTargets(peaks, moved, positive)])
    p, t = scores.sigmoid().flatten().tolist(), peaks.flatten().tolist()
    expected = -((1 - p[0]) ** 2) * math.log(p[0])
    expected -= sum((1 - t[i]) ** 4 * p[i] ** 2 * math.log(1 - p[i]) for i in (1, 2, 3))
    assert focal.item() == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(offset, F.smooth_l1_loss(offsets[..., 0, 0], moved[..., 0, 0], reduction="sum"))


def test_a_gaussian_peak_is_one_keypoint_at_the_target_point() -> None:
    point, size, label = torch.tensor([[[21.3, 29.1]]]), torch.tensor([[[40.0, 30.0]]]), torch.tensor([[0]])
    levels = []
    for shape, stride in (((6, 6), 8), ((3, 3), 16)):
        target = keypoint_targets(point, size, label, 1, shape, stride)
        levels.append((torch.logit(target.scores, 1e-12), target.offsets))
    chosen = select_keypoints(levels, (8, 16), per_level=20, most=2)
    assert chosen.cells.tolist() == [[3 * 6 + 2, 36 + 1 * 3 + 1]]  # the nearest cell of each level
    torch.testing.assert_close(chosen.places, point.expand(1, 2, 2))
    torch.testing.assert_close(chosen.scores, torch.ones(1, 2))


def test_few_cells_give_few_keys_and_a_mask() -> None:
    scores = torch.tensor([[[[3.0, 1.0, 2.0]]]])
    chosen = select_keypoints([(scores, torch.zeros(1, 2, 1, 3))], (4,))
    assert chosen.mask.tolist() == [[True, True, False]] and chosen.cells[0, :2].tolist() == [0, 2]
    with pytest.raises(UsageError, match="strides"):
        select_keypoints([(scores, scores)], (4, 8))
