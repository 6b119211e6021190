"""The plain judgement of a network: accuracy, classes, calibration, lengths of right and wrong answers."""

from typing import Any

import torch

from mereo.inference.answers import Answers
from mereo.inference.metrics import (
    CONFIDENCES,
    Reliability,
    brier_score,
    class_scores,
    confidences,
    confusion_matrix,
    expected_calibration_error,
    negative_log_likelihood,
    reliability,
    separation,
    wilson_interval,
)
from mereo.measure.objects import judge_objects

BINS = 15


def reliabilities(answers: Answers) -> dict[str, Reliability]:
    """The bins of each way to turn lengths into confidences."""
    return {how: reliability(confidences(answers.lengths, how), answers.labels, BINS) for how in CONFIDENCES}


def judge(answers: Answers, names: tuple[str, ...]) -> dict[str, Any]:
    """All figures of what a network said, as plain values.

    Args:
        answers: of every image.
        names: of the classes.
    """
    if answers.labels.dim() > 1:
        return judge_objects(answers, names)
    count = len(answers.labels)
    low, high = wilson_interval(answers.accuracy, count)
    confusion = confusion_matrix(answers.predicted, answers.labels, len(names))
    found = reliabilities(answers)
    calibration = {}
    for how, bins in found.items():
        shares = confidences(answers.lengths, how)
        calibration[how] = {
            "ece": expected_calibration_error(bins),
            "brier": brier_score(shares, answers.labels),
            "nll": negative_log_likelihood(shares, answers.labels),
            "mean_confidence": float(shares.amax(1).mean()) if count else 0.0,
            "bins": {name: value.tolist() for name, value in bins._asdict().items()},
        }
    return {
        "count": count,
        "accuracy": answers.accuracy,
        "accuracy_low": low,
        "accuracy_high": high,
        "per_class": [
            {"class": name, **scores._asdict()} for name, scores in zip(names, class_scores(confusion), strict=True)
        ],
        "confusion": confusion.tolist(),
        "calibration": calibration,
        "lengths": length_figures(answers),
    }


def longest_and_lead(answers: Answers) -> tuple[torch.Tensor, torch.Tensor]:
    """Length of the longest capsule, and by how much it is longer than the next, both (n,)."""
    top = answers.lengths.topk(min(2, answers.lengths.shape[1]), 1).values
    return top[:, 0], top[:, 0] - (top[:, 1] if top.shape[1] > 1 else 0)


def length_figures(answers: Answers) -> dict[str, Any]:
    """Mean length of the longest capsule in right and in wrong answers, and how well lengths tell them apart."""
    longest, lead = longest_and_lead(answers)
    right = answers.right

    def mean(values: torch.Tensor) -> float | None:
        return float(values.mean()) if len(values) else None

    return {
        "longest_right": mean(longest[right]),
        "longest_wrong": mean(longest[~right]),
        "lead_right": mean(lead[right]),
        "lead_wrong": mean(lead[~right]),
        "auroc_longest": separation(longest[right], longest[~right]),
        "auroc_lead": separation(lead[right], lead[~right]),
    }
