"""The judgement of images of several objects: which of them are among the longest capsules.

An image is judged right when all of its objects are found. Calibration and confusion are of one label an image; they
are left out.
"""

from typing import Any

import torch

from mereo.inference.answers import Answers
from mereo.inference.metrics import class_ratios, wilson_interval
from mereo.tasks.classification import hits as objects_hit
from mereo.training.report import percent

WORDS = """\
Each image holds {objects} objects, and is judged right when all of them are among its {objects} longest capsules. \
*Said* counts how often a class is among these."""


def judge_objects(answers: Answers, names: tuple[str, ...]) -> dict[str, Any]:
    """All figures of what a network said of images of several objects, as plain values.

    Args:
        answers: of every image, with labels (n, objects).
        names: of the classes.
    """
    count, objects = answers.labels.shape
    low, high = wilson_interval(answers.accuracy, count)
    hits = objects_hit(answers.lengths, answers.labels)
    said = answers.lengths.topk(objects, 1).indices
    counts = [torch.bincount(c.flatten(), minlength=len(names)) for c in (answers.labels[hits], answers.labels, said)]
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
    """One line a network: accuracy, objects found, and the worst class."""
    columns = ["network", "accuracy", "95 % interval", "objects found", "at least one", "worst class"]
    rows = []
    for name, m in models.items():
        worst = min((c for c in m["per_class"] if c["support"]), key=lambda c: c["recall"], default=None)
        rows.append([
            name, percent(m["accuracy"]), f"{percent(m['accuracy_low'])} to {percent(m['accuracy_high'])}",
            percent(m["mean_hits"]), percent(m["any_hit"]),
            "-" if worst is None else f"{worst['class']} ({percent(worst['recall'])})",
        ])  # fmt: skip
    return columns, rows
