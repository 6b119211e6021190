"""Metrics of a classifier, as pure functions of predicted and true classes."""

from typing import NamedTuple

import torch
from torch import Tensor

from mereo.errors import UsageError, check_positive
from mereo.tasks.interval import Z95, wilson_interval

__all__ = [
    "Z95", "ClassScores", "class_ratios", "class_scores", "confusion_matrix", "wilson_interval",
]  # fmt: skip


class ClassScores(NamedTuple):
    """Figures of one class: how many images are of it and are predicted as it, and three ratios (0 for 0 / 0)."""

    support: int
    predicted: int
    recall: float
    precision: float
    f1: float


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


def class_ratios(hits: Tensor, support: Tensor, predicted: Tensor) -> list[ClassScores]:
    """Recall, precision and F1 of every class: h / s, h / t, 2 h / (s + t), 0 for 0 / 0.

    Args:
        hits: how often the class was present and predicted.
        support, predicted: how often it was present, and how often it was predicted.

    Shapes: int64 (classes,) -> one entry a class.
    """
    return [
        ClassScores(s, t, h / max(s, 1), h / max(t, 1), 2 * h / max(s + t, 1))
        for h, s, t in zip(hits.tolist(), support.tolist(), predicted.tolist(), strict=True)
    ]


def chance_accuracy(confusion: Tensor) -> float | None:
    """The accuracy of predictions that do not depend on the images; None with fewer than two classes among the images.

    sum_k (share of the images that are of class k) (share of the images predicted as class k)

    Shapes: confusion int64 (classes, classes), true classes in rows.
    """
    count, seen, predicted = confusion.sum(), confusion.sum(1), confusion.sum(0)
    if int((seen > 0).sum()) < 2:
        return None
    return float((seen.double() * predicted.double()).sum() / count.double() ** 2)
