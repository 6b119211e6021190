"""A few measurements of several trained networks on the same test images, and which of two is better at what."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mereo.inference.answers import collect_answers
from mereo.inference.metrics import chance_accuracy, confusion_matrix
from mereo.measure.attack_stage import accuracy_under
from mereo.measure.classification import least_calibration_error
from mereo.measure.conclusions import CALIBRATION_APART, beside_chance, clearly_apart, coupling_words, is_at_chance
from mereo.measure.corruptions import CORRUPTIONS
from mereo.measure.couplings import CouplingEffect, coupling_effect
from mereo.measure.curves import corruption_curve
from mereo.measure.trained_models import load_trained_models
from mereo.runtime.text import percent, rounded

IMAGES, ATTACKED = 512, 128
"""Largest numbers of test images, and of attacked images."""
MILD = {"rotation": 20.0, "translation": 10.0, "occlusion": 20.0, "noise": 0.1, "blur": 4.0}
"""Severity of each corruption."""
EPSILON, STEPS = 0.02, 5
"""Bound and steps of PGD, of pixels in [0, 1]."""
RATIO_APART = 1.05
"""Ratio of speeds and sizes that counts as a difference."""


@dataclass(frozen=True)
class Measured:
    """Measurements of one network on test images.

    Attributes:
        images, attacked: numbers of images.
        accuracy: without change.
        calibration_error: expected calibration error, of the better way to read the scores.
        corruption: mean accuracy over the corruptions in MILD.
        attack: accuracy under PGD.
        chance: accuracy of predictions that do not depend on the images; None with fewer than two classes among them.
        couplings: the effect of replacing its couplings; None without couplings.
    """

    images: int
    attacked: int
    accuracy: float
    calibration_error: float
    corruption: float
    attack: float
    chance: float | None = None
    couplings: CouplingEffect | None = None

    @property
    def at_chance(self) -> bool:
        """Whether its accuracy is no better than chance."""
        return is_at_chance(beside_chance(self.accuracy, self.images, self.chance))

    def to_dict(self) -> dict[str, float | None]:
        """Plain values, by the headings of a table."""
        effect = self.couplings
        return {
            "images": self.images, "attacked": self.attacked, "accuracy": self.accuracy,
            "calibration_error": self.calibration_error, "corruption": self.corruption, "attack": self.attack,
            "chance": self.chance,
            "couplings_uniform": None if effect is None else effect.uniform.value,
            "couplings_shuffled": None if effect is None else effect.shuffled.value,
        }  # fmt: skip


def measure_side_by_side(
    runs: Mapping[str, Path], data: str, data_root: str | None = None, device: str = "auto", seed: int = 0
) -> dict[str, Measured]:
    """Measure trained networks on the same test images.

    Args:
        runs: their run folders, by label.
        data, data_root: of the images.
        device: of the networks.
        seed: of every random choice.
    """
    trained = load_trained_models(
        list(runs.values()), data=data, data_root=data_root, limit=IMAGES, device=device, seed=seed
    )
    measured = {}
    for label, one in zip(runs, trained, strict=True):
        answers = collect_answers(one.model, one.split)
        attacked = accuracy_under(one, answers, "pgd", EPSILON, STEPS, limit=ATTACKED, seed=seed)
        corrupted = [
            corruption_curve(replace(CORRUPTIONS[name], severities=(0, mild)), one.model, one.split, answers, seed=seed)
            for name, mild in MILD.items()
        ]
        measured[label] = Measured(
            len(answers.labels), attacked.total, answers.accuracy, least_calibration_error(answers),
            statistics.mean(curve[-1].accuracy for curve in corrupted), attacked.accuracy,
            chance_accuracy(confusion_matrix(answers.predicted, answers.labels, len(one.class_names))),
            coupling_effect(one.model, one.split, answers, seed=seed),
        )  # fmt: skip
    return measured


def better_at(
    one: Measured, two: Measured, cost: Mapping[str, tuple[float, float]], least: Sequence[str] = ()
) -> tuple[list[str], list[str], list[str]]:
    """What the first of two networks is better at, what it is worse at, and what shows no clear difference.

    If one of them predicts no better than chance, only accuracy and cost are compared: calibration and robustness of
    guesses mean nothing.

    Args:
        one, two: their measurements.
        cost: further quantities by name, of both; more is better.
        least: names in `cost` where less is better.
    """
    better: list[str] = []
    worse: list[str] = []
    same: list[str] = []

    def put(words: str, clear: bool, first: bool) -> None:
        (same if not clear else better if first else worse).append(words)

    shares = {"accuracy": (one.accuracy, two.accuracy, one.images)}
    if not (guessing := one.at_chance or two.at_chance):
        shares["accuracy under corruption"] = one.corruption, two.corruption, one.images
        shares["accuracy under attack"] = one.attack, two.attack, one.attacked
    for name, (a, b, images) in shares.items():
        put(f"{name} ({100 * a:.1f} and {100 * b:.1f} %)", clearly_apart(a, b, images), a > b)
    if not guessing:
        a, b = one.calibration_error, two.calibration_error
        put(f"calibration error ({100 * a:.1f} and {100 * b:.1f} %)", abs(a - b) > CALIBRATION_APART, a < b)
    for name, (a, b) in cost.items():
        clear = max(a, b) > RATIO_APART * min(a, b)
        put(f"{name} ({rounded(a)} and {rounded(b)})", clear, (a < b) == (name in least))
    return better, worse, same


def verdict(
    names: tuple[str, str], one: Measured, two: Measured, cost: Mapping[str, tuple[float, float]],
    least: Sequence[str] = (),
) -> str:  # fmt: skip
    """A line on what a network is better and worse at than a plain one, and whether to prefer it.

    Args:
        names: of the network and of the plain one.
        one, two, cost, least: as in `better_at`.
    """
    differences = better_at(one, two, cost, least)
    kinds = ("better at", "worse at", "no clear difference in")
    parts = [f"{kind} {', '.join(each)}" for kind, each in zip(kinds, differences, strict=True) if each]
    line = f"{names[0]} compared with the plain {names[1]}: {'; '.join(parts)}."
    guessing = [name for name, each in zip(names, (one, two), strict=True) if each.at_chance]
    if guessing:
        return f"{line} {' and '.join(guessing)}: no better than chance, so nothing else is compared; train longer."
    predictions = [words for words in differences[0] if words.startswith(("accuracy", "calibration"))]
    if predictions:
        return line
    if differences[0]:
        return f"{line} None of its measured predictions is better; only its cost is an advantage."
    return f"{line} It is better at nothing that was measured on these images: use the plain network."


def coupling_line(name: str, one: Measured) -> str | None:
    """A line on the effect of replacing couplings; None for a network without couplings, or one that guesses."""
    if one.couplings is None or one.at_chance:
        return None
    effect = one.couplings
    values = [percent(value) for value in (effect.own, effect.uniform.value, effect.shuffled.value)]
    words = coupling_words(effect.to_dict())
    return (
        f"Couplings of {name}: {values[0]} with its own, {values[1]} replaced by uniform, {values[2]} shuffled"
        f" ({words if words.startswith('no') else f'its own are {words}'})."
    )
