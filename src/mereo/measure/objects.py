"""Metrics of images of several objects: which of their classes are among the longest capsules.

An image counts as correct when all of its objects are predicted. Calibration and confusion are defined for one label
per image and are left out.
"""

from typing import Any

import torch

from mereo.inference.answers import Answers
from mereo.inference.metrics import class_ratios, wilson_interval
from mereo.runtime.text import percent
from mereo.tasks.classification import hits as objects_hit

WORDS = """\
Each image holds {objects} objects and is correct when all of them are among its {objects} longest capsules. \
*Predicted* counts how often a class is among these."""


def object_metrics(answers: Answers, names: tuple[str, ...]) -> dict[str, Any]:
    """All metrics of the predictions for images of several objects, as plain values.

    Args:
        answers: predictions for every image, with labels (n, objects).
        names: of the classes.
    """
    count, objects = answers.labels.shape
    low, high = wilson_interval(answers.accuracy, count)
    hits = objects_hit(answers.scores, answers.labels)
    predicted = answers.scores.topk(objects, 1).indices
    counts = [
        torch.bincount(c.flatten(), minlength=len(names)) for c in (answers.labels[hits], answers.labels, predicted)
    ]
    shares = (hits.double().mean(1), hits.any(1).double())
    mean_hits, any_hit = (float(share.mean()) if count else 0.0 for share in shares)
    return {
        "count": count,
        "objects": objects,
        "accuracy": answers.accuracy,
        "accuracy_low": low,
        "accuracy_high": high,
        "mean_hits": mean_hits,
        "any_hit": any_hit,
        "per_class": [
            {"class": name, **scores._asdict()} for name, scores in zip(names, class_ratios(*counts), strict=True)
        ],
    }


def overview_objects(models: dict[str, dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """One row per network: accuracy, objects predicted, and the worst class."""
    columns = ["network", "accuracy", "95 % interval", "objects predicted", "at least one", "worst class"]
    rows = []
    for name, m in models.items():
        worst = min((c for c in m["per_class"] if c["support"]), key=lambda c: c["recall"], default=None)
        rows.append([
            name, percent(m["accuracy"]), f"{percent(m['accuracy_low'])} to {percent(m['accuracy_high'])}",
            percent(m["mean_hits"]), percent(m["any_hit"]),
            "-" if worst is None else f"{worst['class']} ({percent(worst['recall'])})",
        ])  # fmt: skip
    return columns, rows
