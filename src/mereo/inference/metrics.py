"""Metrics of a classifier, as pure functions of predicted and true classes."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mereo.errors import UsageError, check_positive

Z95 = 1.959964


class ClassScores(NamedTuple):
    """How one class fares: images that are of it, images said to be of it, and the three ratios (0 for 0 / 0)."""

    support: int
    said: int
    recall: float
    precision: float
    f1: float


def wilson_interval(share: float, count: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's interval of a share p of n images, 95 % by default; (0, 1) for no image.

    (p + z^2 / 2n  -+  z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)

    Args:
        share: of the images judged right, in [0, 1].
        count: of images.
        z: quantile of the normal distribution.

    Reference: Wilson, Journal of the American Statistical Association 22, 1927.
    """
    if not 0 <= share <= 1:
        raise UsageError(f"share is {share}; it must be between 0 and 1.")
    if count < 1:
        return 0.0, 1.0
    spread = z * z / count
    centre = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    return max(centre - half, 0.0), min(centre + half, 1.0)


def confusion_matrix(predicted: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """How often class i was said to be class j.

    C[i, j] = |{n : label_n = i, predicted_n = j}|

    Args:
        predicted: the class said.
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
        hits: how often the class was there and was said.
        support, said: how often it was there, and how often it was said.

    Shapes: int64 (classes,) -> one entry a class.
    """
    return [
        ClassScores(s, t, h / max(s, 1), h / max(t, 1), 2 * h / max(s + t, 1))
        for h, s, t in zip(hits.tolist(), support.tolist(), said.tolist(), strict=True)
    ]
