"""Metrics of a network on one split: accuracy, classes, calibration, scores of correct and of wrong predictions."""

from typing import Any

import torch
from torch import Tensor

from mereo.inference.answers import Answers
from mereo.inference.calibration import (
    Reliability,
    brier_score,
    confidences,
    expected_calibration_error,
    negative_log_likelihood,
    reliability,
    ways_of,
)
from mereo.inference.metrics import chance_accuracy, class_scores, confusion_matrix, wilson_interval
from mereo.inference.temperature import Calibration, probabilities
from mereo.measure.objects import object_metrics

BINS = 15


def reliabilities(answers: Answers) -> dict[str, Reliability]:
    """The bins of each way to turn scores into confidences."""
    return {how: reliability(confidences(answers.scores, how), answers.labels, BINS) for how in ways_of(answers.kind)}


def classification_metrics(answers: Answers, names: tuple[str, ...]) -> dict[str, Any]:
    """All metrics of the predictions of a network, as plain values.

    Args:
        answers: its predictions for every image.
        names: of the classes.
    """
    if answers.labels.dim() > 1:
        return object_metrics(answers, names)
    count = len(answers.labels)
    low, high = wilson_interval(answers.accuracy, count)
    confusion = confusion_matrix(answers.predicted, answers.labels, len(names))
    calibration = {}
    for how, bins in reliabilities(answers).items():
        shares = confidences(answers.scores, how)
        calibration[how] = {
            "ece": expected_calibration_error(bins),
            "brier": brier_score(shares, answers.labels),
            "nll": negative_log_likelihood(shares, answers.labels),
            "mean_confidence": float(shares.amax(1).mean()) if count else 0.0,
            "bins": {name: value.tolist() for name, value in bins._asdict().items()},
        }
    by_class = class_scores(confusion)
    recalls = [scores.recall for scores in by_class if scores.support]
    return {
        "count": count,
        "accuracy": answers.accuracy,
        "accuracy_low": low,
        "accuracy_high": high,
        "balanced_accuracy": sum(recalls) / max(len(recalls), 1),
        "chance": chance_accuracy(confusion),
        "per_class": [{"class": name, **scores._asdict()} for name, scores in zip(names, by_class, strict=True)],
        "confusion": confusion.tolist(),
        "calibration": calibration,
        "scores": score_metrics(answers),
    }


def least_calibration_error(answers: Answers) -> float:
    """The expected calibration error, of the better way to turn scores into confidences."""
    return min(expected_calibration_error(bins) for bins in reliabilities(answers).values())


def calibrated_error(answers: Answers, calibration: Calibration | None) -> dict[str, Any]:
    """The calibration error with the temperature of the weights, as plain values; nothing if they have none."""
    if calibration is None or answers.labels.dim() > 1:
        return {}
    bins = reliability(probabilities(answers.scores, calibration.temperature), answers.labels, BINS)
    return {"calibrated": {"temperature": calibration.temperature, "ece": expected_calibration_error(bins)}}


def highest_and_lead(answers: Answers) -> tuple[Tensor, Tensor]:
    """The highest score, and by how much it is above the next, both (n,); of logits, of their softmax."""
    scores = answers.scores.softmax(1) if answers.kind == "logits" else answers.scores
    top = scores.topk(min(2, scores.shape[1]), 1).values
    return top[:, 0], top[:, 0] - (top[:, 1] if top.shape[1] > 1 else 0)


def score_metrics(answers: Answers) -> dict[str, Any]:
    """Mean of the highest score for correct and wrong predictions, and how well scores separate the two."""
    highest, lead = highest_and_lead(answers)
    correct = answers.correct

    def mean(values: Tensor) -> float | None:
        return float(values.mean()) if len(values) else None

    return {
        "kind": answers.kind,
        "highest_correct": mean(highest[correct]),
        "highest_wrong": mean(highest[~correct]),
        "lead_correct": mean(lead[correct]),
        "lead_wrong": mean(lead[~correct]),
        "auroc_highest": separation(highest[correct], highest[~correct]),
        "auroc_lead": separation(lead[correct], lead[~correct]),
    }


def separation(correct: Tensor, wrong: Tensor) -> float | None:
    """How well a score separates correct from wrong predictions: the area under the ROC curve; None without either.

    AUROC = P(correct > wrong) + P(correct = wrong) / 2, over pairs of one correct and one wrong prediction

    Args:
        correct: scores of the correct predictions.
        wrong: scores of the wrong predictions.

    Shapes: (n,) and (m,).
    """
    if not len(correct) or not len(wrong):
        return None
    ordered = wrong.sort().values
    below, upto = (torch.searchsorted(ordered, correct, right=side).double() for side in (False, True))
    return float(((below + upto) / 2).mean() / len(wrong))
