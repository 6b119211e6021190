"""The first answers of an evaluation in words: whether a network predicts at all, its errors, effects of couplings."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mereo.measure.couplings import WAYS
from mereo.runtime.text import percent
from mereo.tasks.interval import wilson_interval

FEW = 30
"""Images below which predictions at the level of chance are a matter of too few images."""
SHOWN_ERRORS = 5
CALIBRATION_APART = 0.01
"""Difference between calibration errors that counts."""


def clearly_apart(one: float, two: float, images: int) -> bool:
    """Whether two shares, each of `images` images, differ by more than two standard errors of their difference."""
    mean = (one + two) / 2
    return abs(one - two) > 2 * math.sqrt(2 * mean * (1 - mean) / max(images, 1))


def is_at_chance(model: Mapping[str, Any]) -> bool:
    """Whether the accuracy of a network is no better than chance, within its 95 % interval."""
    chance = model.get("chance")
    return chance is not None and bool(model["accuracy_low"] <= chance)


def chance_words(name: str, model: Mapping[str, Any]) -> str | None:
    """A sentence on a network at the level of chance; None for others."""
    if not is_at_chance(model):
        return None
    numbers = f"({percent(model['accuracy'])} of {model['count']:,} images; guessing gets {percent(model['chance'])})"
    if model["count"] < FEW and model["accuracy"] > model["chance"]:
        return f"{name}: too few images to state that it predicts better than chance {numbers}."
    return f"{name} predicts no better than chance {numbers}; its other numbers describe a network that guesses."


def beside_chance(accuracy: float, images: int, chance: float | None) -> dict[str, Any]:
    """An accuracy with its interval and number of images, in the form that `is_at_chance` and `chance_words` take."""
    low, _ = wilson_interval(accuracy, images)
    return {"accuracy": accuracy, "accuracy_low": low, "count": images, "chance": chance}


def errors(model: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """(true class, predicted class, images), the most frequent first; empty without a confusion matrix."""
    if "confusion" not in model:
        return []
    confusion = torch.as_tensor(model["confusion"])
    names = [each["class"] for each in model["per_class"]]
    wrong = confusion.clone().fill_diagonal_(0)
    pairs = [(names[i], names[j], int(wrong[i, j])) for i, j in wrong.nonzero().tolist()]
    return sorted(pairs, key=lambda pair: -pair[2])


def error_words(name: str, model: Mapping[str, Any]) -> str | None:
    """One line on the most frequent errors; None without errors."""
    pairs = errors(model)
    if not pairs:
        return None
    shown = ", ".join(f"{true} as {predicted} ({count:,})" for true, predicted, count in pairs[:SHOWN_ERRORS])
    more = f", and {len(pairs) - SHOWN_ERRORS} other kinds" if len(pairs) > SHOWN_ERRORS else ""
    total = sum(count for _, _, count in pairs)
    return f"{name}: {total:,} of {model['count']:,} images misclassified: {shown}{more}"


def coupling_rows(models: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the table of replaced couplings; no row for a network without couplings."""
    effects = {name: model["couplings"] for name, model in models.items() if "couplings" in model}
    metric = next(iter(effects.values()))["metric"]

    def shown(value: float) -> str:
        return percent(value) if metric == "accuracy" else f"{value:.6g}"

    rows = [
        [name, shown(effect["own"]), *(shown(effect[way]["value"]) for way in WAYS), coupling_words(effect)]
        for name, effect in effects.items()
    ]
    return ["network", metric, "couplings replaced by uniform", "shuffled", "own couplings"], rows


def coupling_words(effect: Mapping[str, Any]) -> str:
    """Whether a network needs its own couplings: beyond two standard errors of the images whose result changes.

    Args:
        effect: `CouplingEffect.to_dict()`.
    """
    if "lost" not in effect["uniform"]:
        return "-"
    clear = []
    for way in WAYS:
        lost, gained = effect[way]["lost"], effect[way]["gained"]
        if abs(lost - gained) > 2 * math.sqrt(lost + gained):
            clear.append(f"{'better' if lost > gained else 'worse'} than {way}")
    return ", ".join(clear) or "no clear difference"


def coupling_verdict(models: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A sentence for each network, better than chance, whose own couplings are not clearly better than uniform ones."""
    predicting = {name: model for name, model in models.items() if not is_at_chance(model)}
    effects = {name: model["couplings"] for name, model in predicting.items() if "couplings" in model}
    return [
        f"{name}: its own couplings are not clearly better than uniform ones on these images."
        for name, effect in effects.items()
        if "lost" in effect["uniform"] and "better than uniform" not in coupling_words(effect)
    ]


def student_quantile(level: float, freedom: int) -> float:
    """How far Student's t goes from zero with probability `level`, for `freedom` degrees of freedom.

    With t = sqrt(freedom) tan(angle) the density is cos(angle)^(freedom - 1), whose integral is summed.
    """
    steps = 20_000
    angles = [(i + 0.5) * math.pi / (2 * steps) for i in range(steps)]
    total, reached = math.fsum(math.cos(a) ** (freedom - 1) for a in angles), 0.0
    for angle in angles:
        share = math.cos(angle) ** (freedom - 1) / total
        if reached + share >= level:
            inside = angle + ((level - reached) / share - 0.5) * math.pi / (2 * steps)
            return math.sqrt(freedom) * math.tan(inside)
        reached += share
    return math.inf


def beside_first(values: Mapping[str, Sequence[float]], *, least: bool = False) -> list[str]:
    """Lines with the mean of each network over its seeds, and whether it differs from the first beyond the seeds.

    Networks are compared seed by seed. The intervals of the differences hold together with 95 %, each with 1 - 5 % /
    their number.

    Args:
        values: of each network by name, one a seed, the same seeds for all.
        least: whether less is better.
    """
    first, *others = values
    seeds = len(values[first])
    if seeds < 2:
        return ["One seed cannot show differences; give --seeds 3 or more."]
    lines = [f"{name}: {_interval(each, 0.95)} over {seeds} seeds" for name, each in values.items()]
    differing = []
    for name in others:
        differences = [a - b for a, b in zip(values[name], values[first], strict=True)]
        level = 1 - 0.05 / len(others)
        lines.append(f"{name} less {first}: {_interval(differences, level, '+')}")
        middle, half = _mean_and_half(differences, level)
        if abs(middle) > half:
            differing.append(f"{name} is {'better' if (middle < 0) == least else 'worse'} than {first}")
    if others:
        found = f"Beyond the seeds {'; '.join(differing)}." if differing else ""
        lines.append(found or f"Nothing differs from {first} beyond the seeds.")
    return lines


def _mean_and_half(values: Sequence[float], level: float) -> tuple[float, float]:
    """The mean, and half of its interval."""
    error = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values), student_quantile(level, len(values) - 1) * error


def _interval(values: Sequence[float], level: float, sign: str = "") -> str:
    middle, half = _mean_and_half(values, level)
    return f"{middle:{sign}.2f} ({middle - half:{sign}.2f} to {middle + half:{sign}.2f})"
