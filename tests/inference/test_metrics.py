"""Figures of merit against numbers worked out by hand."""

import math

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


def test_confidences():
    lengths = torch.tensor([[0.9, 0.3, 0.3], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(metrics.confidences(lengths), torch.tensor([[0.6, 0.2, 0.2], [1 / 3, 1 / 3, 1 / 3]]))
    soft = metrics.confidences(lengths, "softmax")
    assert float(soft[0, 0]) == pytest.approx(math.exp(0.6) / (math.exp(0.6) + 2))
    longest = metrics.confidences(torch.eye(10)[:1], "softmax")
    assert float(longest[0, 0]) == pytest.approx(math.e / (math.e + 9))
    for bad in (torch.tensor([[-0.1, 0.2]]), torch.tensor([[math.nan, 0.2]])):
        with pytest.raises(UsageError, match="lengths"):
            metrics.confidences(bad)
    with pytest.raises(UsageError, match="normalised"):
        metrics.confidences(lengths, "sum")


def test_reliability_and_ece():
    # Two bins of two: confidences 0.9 and 0.7 (one right), 0.4 (wrong); three classes.
    shares = torch.tensor([[0.9, 0.05, 0.05], [0.7, 0.2, 0.1], [0.3, 0.3, 0.4]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 0])
    found = metrics.reliability(shares, labels, bins=2)
    assert found.images.tolist() == [1, 2]
    assert found.confidence.tolist() == pytest.approx([0.4, 0.8])
    assert found.accuracy.tolist() == pytest.approx([0.0, 0.5])
    assert metrics.expected_calibration_error(found) == pytest.approx(1 / 3 * 0.4 + 2 / 3 * 0.3)


def test_bins_are_closed_above():
    found = metrics.reliability(torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.75, 0.25]]), torch.tensor([0, 0, 0]), bins=4)
    assert found.images.tolist() == [0, 1, 1, 1]


def test_brier_and_likelihood():
    shares, labels = torch.tensor([[0.8, 0.2, 0.0], [0.5, 0.25, 0.25]]), torch.tensor([0, 2])
    # (0.04 + 0.04 + 0) and (0.25 + 0.0625 + 0.5625)
    assert metrics.brier_score(shares, labels) == pytest.approx((0.08 + 0.875) / 2)
    assert metrics.negative_log_likelihood(shares, labels) == pytest.approx(-(math.log(0.8) + math.log(0.25)) / 2)
    assert metrics.brier_score(torch.eye(3), torch.tensor([1, 2, 0])) == 2
    assert metrics.negative_log_likelihood(torch.eye(2), torch.tensor([1, 0])) == pytest.approx(-math.log(1e-12))


def test_separation_counts_pairs():
    right, wrong = torch.tensor([0.9, 0.5, 0.4]), torch.tensor([0.5, 0.1])
    # 0.9 beats both; 0.5 ties one and beats one; 0.4 beats one of two: (2 + 1.5 + 1) / 6
    assert metrics.separation(right, wrong) == pytest.approx(4.5 / 6)
    assert metrics.separation(right, wrong[:0]) is None


def test_figures_of_no_image():
    none, labels = torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)
    assert metrics.expected_calibration_error(metrics.reliability(none, labels)) == 0
    assert metrics.brier_score(none, labels) == metrics.negative_log_likelihood(none, labels) == 0
    assert metrics.confusion_matrix(labels, labels, 3).sum() == 0


def test_ece_and_accuracy_agree_with_a_loop():
    generator = torch.Generator().manual_seed(0)
    shares = torch.rand(200, 5, generator=generator, dtype=torch.float64).softmax(1)
    labels = torch.randint(0, 5, (200,), generator=generator)
    expected = 0.0
    for b in range(15):
        chosen = [i for i in range(200) if b / 15 < float(shares[i].max()) <= (b + 1) / 15]
        if chosen:
            right = sum(int(shares[i].argmax()) == int(labels[i]) for i in chosen)
            trust = sum(float(shares[i].max()) for i in chosen)
            expected += abs(right - trust) / 200
    assert metrics.expected_calibration_error(metrics.reliability(shares, labels)) == pytest.approx(expected)
