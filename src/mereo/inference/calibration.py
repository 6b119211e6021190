"""Calibration: how well confidences agree with accuracy.

Logits become probabilities by a softmax. The scores of a capsule classifier are lengths of vectors, each in [0, 1) on
its own: they do not sum to one and are not probabilities. `confidences` turns them into probabilities in one of two
ways, and calibration is measured for each way.

torchmetrics would add two packages for these few formulas, and its calibration error returns one number, where the
reliability diagram needs the bins.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mereo.errors import UsageError, check_choice, check_positive

CONFIDENCES = ("normalised", "softmax")


class Reliability(NamedTuple):
    """Bins of confidence: images in each, their mean confidence, and the share of them classified correctly.

    Shapes: edges (bins + 1,); images, confidence, accuracy (bins,), the last two 0 in an empty bin.
    """

    edges: Tensor
    images: Tensor
    confidence: Tensor
    accuracy: Tensor


def ways_of(kind: str) -> tuple[str, ...]:
    """The ways in which scores of a kind, see `VisionModel.score_kind`, become confidences."""
    return ("softmax",) if kind == "logits" else CONFIDENCES


def confidences(scores: Tensor, how: str = "normalised") -> Tensor:
    """Scores as a distribution over the classes.

    normalised: p_j = s_j / sum_k s_k    1 / classes for each where all are 0; certain only if all others vanish
    softmax:    p_j = exp s_j / sum_k exp s_k    of lengths, which are below 1, at most e / (e + classes - 1)

    Args:
        scores: of the classes; at least 0 if they are normalised.
        how: "normalised" or "softmax".

    Shapes: (n, classes) -> (n, classes), rows that sum to 1.
    """
    check_choice("how", how, CONFIDENCES)
    if scores.numel() and not bool(scores.isfinite().all()):
        raise UsageError("scores has entries that are not finite numbers; check the weights of the network.")
    if how == "softmax":
        return scores.softmax(1)
    if scores.numel() and not bool((scores >= 0).all()):
        raise UsageError("scores has negative entries, which cannot be normalised; use how='softmax'.")
    total = scores.sum(1, keepdim=True)
    uniform = torch.full_like(scores, 1 / max(scores.shape[1], 1))
    return torch.where(total > 0, scores / total.clamp(min=torch.finfo(scores.dtype).tiny), uniform)


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


def expected_calibration_error(bins: Reliability) -> float:
    """Mean distance of confidence and accuracy over the bins, weighted by their images.

    ECE = sum_b (n_b / n) |accuracy_b - confidence_b|

    Args:
        bins: from `reliability`.

    Reference: arXiv:1706.04599, eq. 3.
    """
    gaps = (bins.accuracy - bins.confidence).abs() * bins.images
    return float(gaps.sum() / bins.images.sum().clamp(min=1))


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
