"""Calibration against numbers worked out by hand and against loops."""

import math

import pytest
import torch

from mereo.errors import UsageError
from mereo.inference import calibration
from mereo.measure.classification import separation


def test_confidences():
    lengths = torch.tensor([[0.9, 0.3, 0.3], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(calibration.confidences(lengths), torch.tensor([[0.6, 0.2, 0.2], [1 / 3, 1 / 3, 1 / 3]]))
    soft = calibration.confidences(lengths, "softmax")
    assert float(soft[0, 0]) == pytest.approx(math.exp(0.6) / (math.exp(0.6) + 2))
    longest = calibration.confidences(torch.eye(10)[:1], "softmax")
    assert float(longest[0, 0]) == pytest.approx(math.e / (math.e + 9))
    for bad in (torch.tensor([[-0.1, 0.2]]), torch.tensor([[math.nan, 0.2]])):
        with pytest.raises(UsageError, match="scores"):
            calibration.confidences(bad)
    with pytest.raises(UsageError, match="normalised"):
        calibration.confidences(lengths, "sum")


def test_reliability_and_ece():
    # Two bins of two: confidences 0.9 and 0.7 (one right), 0.4 (wrong); three classes.
    shares = torch.tensor([[0.9, 0.05, 0.05], [0.7, 0.2, 0.1], [0.3, 0.3, 0.4]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 0])
    bins = calibration.reliability(shares, labels, bins=2)
    assert bins.images.tolist() == [1, 2]
    assert bins.confidence.tolist() == pytest.approx([0.4, 0.8])
    assert bins.accuracy.tolist() == pytest.approx([0.0, 0.5])
    assert calibration.expected_calibration_error(bins) == pytest.approx(1 / 3 * 0.4 + 2 / 3 * 0.3)


def test_bins_are_closed_above():
    bins = calibration.reliability(
        torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.75, 0.25]]), torch.tensor([0, 0, 0]), bins=4
    )
    assert bins.images.tolist() == [0, 1, 1, 1]


def test_brier_and_likelihood():
    shares, labels = torch.tensor([[0.8, 0.2, 0.0], [0.5, 0.25, 0.25]]), torch.tensor([0, 2])
    # (0.04 + 0.04 + 0) and (0.25 + 0.0625 + 0.5625)
    assert calibration.brier_score(shares, labels) == pytest.approx((0.08 + 0.875) / 2)
    assert calibration.negative_log_likelihood(shares, labels) == pytest.approx(-(math.log(0.8) + math.log(0.25)) / 2)
    assert calibration.brier_score(torch.eye(3), torch.tensor([1, 2, 0])) == 2
    assert calibration.negative_log_likelihood(torch.eye(2), torch.tensor([1, 0])) == pytest.approx(-math.log(1e-12))


def test_separation_counts_pairs():
    right, wrong = torch.tensor([0.9, 0.5, 0.4]), torch.tensor([0.5, 0.1])
    # 0.9 beats both; 0.5 ties one and beats one; 0.4 beats one of two: (2 + 1.5 + 1) / 6
    assert separation(right, wrong) == pytest.approx(4.5 / 6)
    assert separation(right, wrong[:0]) is None


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
    assert calibration.expected_calibration_error(calibration.reliability(shares, labels)) == pytest.approx(expected)


def test_calibration_of_no_image():
    none, labels = torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)
    assert calibration.expected_calibration_error(calibration.reliability(none, labels)) == 0
    assert calibration.brier_score(none, labels) == calibration.negative_log_likelihood(none, labels) == 0
