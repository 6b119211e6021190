"""Figures of merit of a classifier, as pure functions of predictions and labels.

The scores of a capsule classifier are lengths of vectors, each in [0, 1) on its own: they do not sum to one and are not
probabilities. `confidences` turns them into some, in one of two ways; calibration is then a statement about that way.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mereo.errors import UsageError, check_choice, check_positive
from mereo.tasks.interval import Z95, wilson_interval

__all__ = [
    "CONFIDENCES", "Z95", "ClassScores", "Reliability", "brier_score", "class_ratios", "class_scores", "confidences",
    "confusion_matrix", "expected_calibration_error", "negative_log_likelihood", "reliability", "separation",
    "wilson_interval",
]  # fmt: skip

CONFIDENCES = ("normalised", "softmax")


class ClassScores(NamedTuple):
    """Figures of one class: images of it (support), images predicted as it (said), and three ratios (0 for 0 / 0)."""

    support: int
    said: int
    recall: float
    precision: float
    f1: float


class Reliability(NamedTuple):
    """Bins of confidence: images in each, their mean confidence, and the share of them classified correctly.

    Shapes: edges (bins + 1,); images, confidence, accuracy (bins,), the last two 0 in an empty bin.
    """

    edges: Tensor
    images: Tensor
    confidence: Tensor
    accuracy: Tensor


def confusion_matrix(predicted: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """How often class i was predicted as class j.

    C[i, j] = |{n : label_n = i, predicted_n = j}|

    Args:
        predicted: the predicted class.
        labels: the true class.
        num_classes: of the matrix.

    Shapes: predicted, labels int64 (n,) in 0 .. num_classes - 1 -> int64 (num_classes, num_classes).
    """
    check_positive(num_classes=num_classes)
    both = torch.cat([predicted, labels])
    if len(both) and not 0 <= int(both.min()) <= int(both.max()) < num_classes:
        raise UsageError(f"predicted or labels has values outside 0 .. {num_classes - 1}.")
    cells = torch.bincount(labels * num_classes + predicted, minlength=num_classes * num_classes)
    return cells.view(num_classes, num_classes)


def class_scores(confusion: Tensor) -> list[ClassScores]:
    """Recall, precision and F1 of every class.

    recall_i = C_ii / sum_j C_ij,  precision_i = C_ii / sum_j C_ji,  F1_i = 2 C_ii / sum_j (C_ij + C_ji)

    Args:
        confusion: from `confusion_matrix`.

    Shapes: int64 (classes, classes) -> one entry a class.
    """
    return class_ratios(confusion.diagonal(), confusion.sum(1), confusion.sum(0))


def class_ratios(hits: Tensor, support: Tensor, said: Tensor) -> list[ClassScores]:
    """Recall, precision and F1 of every class: h / s, h / t, 2 h / (s + t), 0 for 0 / 0.

    Args:
        hits: how often the class was present and predicted.
        support, said: how often it was present, and how often it was predicted.

    Shapes: int64 (classes,) -> one entry a class.
    """
    return [
        ClassScores(s, t, h / max(s, 1), h / max(t, 1), 2 * h / max(s + t, 1))
        for h, s, t in zip(hits.tolist(), support.tolist(), said.tolist(), strict=True)
    ]


def confidences(lengths: Tensor, how: str = "normalised") -> Tensor:
    """Lengths of class capsules as a distribution over the classes.

    normalised: p_j = |v_j| / sum_k |v_k|    1 / classes for each where all are 0; certain only if all others vanish
    softmax:    p_j = exp |v_j| / sum_k exp |v_k|    at most e / (e + classes - 1), for lengths are below 1

    Args:
        lengths: of the class capsules, at least 0.
        how: "normalised" or "softmax".

    Shapes: (n, classes) -> (n, classes), rows that sum to 1.
    """
    check_choice("how", how, CONFIDENCES)
    if lengths.numel() and not bool((lengths >= 0).all()):
        raise UsageError("lengths has entries that are negative or not a number; lengths are at least 0.")
    if how == "softmax":
        return lengths.softmax(1)
    total = lengths.sum(1, keepdim=True)
    uniform = torch.full_like(lengths, 1 / max(lengths.shape[1], 1))
    return torch.where(total > 0, lengths / total.clamp(min=torch.finfo(lengths.dtype).tiny), uniform)


def reliability(probabilities: Tensor, labels: Tensor, bins: int = 15) -> Reliability:
    """The images by the probability of the predicted class, in bins of equal width (low, high].

    Args:
        probabilities: a distribution over the classes for each image.
        labels: the true class.
        bins: how many.

    Shapes: probabilities (n, classes), labels int64 (n,).

    Reference: arXiv:1706.04599, section 2.
    """
    check_positive(bins=bins)
    top, predicted = probabilities.double().max(1)
    place = (top * bins).ceil().long().clamp(1, bins) - 1
    count = torch.bincount(place, minlength=bins)
    filled = count.clamp(min=1)
    accuracy = torch.bincount(place, (predicted == labels).double(), minlength=bins) / filled
    confidence = torch.bincount(place, top, minlength=bins) / filled
    return Reliability(torch.linspace(0, 1, bins + 1, dtype=torch.float64), count, confidence, accuracy)


def expected_calibration_error(curve: Reliability) -> float:
    """Mean distance of confidence and accuracy over the bins, weighted by their images.

    ECE = sum_b (n_b / n) |accuracy_b - confidence_b|

    Args:
        curve: from `reliability`.

    Reference: arXiv:1706.04599, eq. 3.
    """
    gaps = (curve.accuracy - curve.confidence).abs() * curve.images
    return float(gaps.sum() / curve.images.sum().clamp(min=1))


def brier_score(probabilities: Tensor, labels: Tensor) -> float:
    """Mean squared distance of the distribution from the truth, between 0 and 2; 0 for no image.

    Brier = mean_n sum_j (p_nj - [j = label_n])^2

    Args:
        probabilities: a distribution over the classes for each image.
        labels: the true class.

    Shapes: probabilities (n, classes), labels int64 (n,).

    Reference: Brier, Monthly Weather Review 78, 1950.
    """
    if not len(labels):
        return 0.0
    truth = torch.nn.functional.one_hot(labels, probabilities.shape[1])
    return float((probabilities.double() - truth).square().sum(1).mean())


def negative_log_likelihood(probabilities: Tensor, labels: Tensor) -> float:
    """Mean surprise at the truth in nats; probabilities below 1e-12 count as 1e-12, and no image as 0.

    NLL = -mean_n log p_n,label_n

    Args:
        probabilities: a distribution over the classes for each image.
        labels: the true class.

    Shapes: probabilities (n, classes), labels int64 (n,).
    """
    if not len(labels):
        return 0.0
    return float(-probabilities.double().gather(1, labels[:, None]).clamp(min=1e-12).log().mean())


def separation(right: Tensor, wrong: Tensor) -> float | None:
    """Area under the ROC curve of a score that separates correct from wrong predictions; None if either is missing.

    AUROC = P(right > wrong) + P(right = wrong) / 2, over pairs of one correct and one wrong prediction

    Args:
        right: scores of the correct predictions.
        wrong: scores of the wrong predictions.

    Shapes: (n,) and (m,).
    """
    if not len(right) or not len(wrong):
        return None
    ordered = wrong.sort().values
    below, upto = (torch.searchsorted(ordered, right, right=side).double() for side in (False, True))
    return float(((below + upto) / 2).mean() / len(wrong))
