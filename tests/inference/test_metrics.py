"""Metrics against numbers worked out by hand."""

import pytest
import torch

from mereo.errors import UsageError
from mereo.inference import metrics


def test_wilson_interval_of_eight_in_ten():
    # p = 0.8, n = 10, z = 1.959964: z^2 = 3.841459, so
    # centre = (0.8 + 3.841459 / 20) / 1.3841459 = 0.716740, half = 1.959964 sqrt(0.016 + 0.009603647) / 1.3841459
    low, high = metrics.wilson_interval(0.8, 10)
    assert low == pytest.approx(0.716740 - 0.226577, abs=1e-5)
    assert high == pytest.approx(0.716740 + 0.226577, abs=1e-5)


def test_wilson_interval_at_the_ends():
    z2 = metrics.Z95**2
    assert metrics.wilson_interval(1.0, 20) == pytest.approx((20 / (20 + z2), 1.0))
    assert metrics.wilson_interval(0.0, 20) == pytest.approx((0.0, z2 / (20 + z2)))
    assert metrics.wilson_interval(0.5, 0) == (0.0, 1.0)
    with pytest.raises(UsageError, match="share"):
        metrics.wilson_interval(1.2, 3)


def test_confusion_and_class_scores():
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    predicted = torch.tensor([0, 0, 1, 1, 0, 0])
    confusion = metrics.confusion_matrix(predicted, labels, 4)
    assert confusion.tolist() == [[2, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    first, second, third, absent = metrics.class_scores(confusion)
    assert first == (3, 4, 2 / 3, 2 / 4, 4 / 7)
    assert second == (2, 2, 1 / 2, 1 / 2, 1 / 2)
    assert third == (1, 0, 0, 0, 0)
    assert absent == (0, 0, 0, 0, 0)


def test_confusion_refuses_foreign_classes():
    with pytest.raises(UsageError, match=r"0 \.\. 1"):
        metrics.confusion_matrix(torch.tensor([0]), torch.tensor([2]), 2)


def test_the_confusion_matrix_of_no_image():
    labels = torch.zeros(0, dtype=torch.int64)
    assert metrics.confusion_matrix(labels, labels, 3).sum() == 0
