"""A few measurements of several trained networks on the same test images, and which of two is better at what."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mereo.inference.answers import collect_answers
from mereo.measure.attacks.attack import check_attack
from mereo.measure.calibration import confidences, expected_calibration_error, reliability, ways_of
from mereo.measure.corruptions import CORRUPTIONS
from mereo.measure.curves import attack_curve, corruption_curve
from mereo.measure.plan import part_of
from mereo.measure.trained_models import load_trained_models

IMAGES, ATTACKED = 512, 128
"""Largest numbers of test images, and of those that are attacked."""
NOISE, EPSILON, STEPS = 0.1, 0.02, 5
"""Standard deviation of the noise, and bound and steps of PGD, of pixels in [0, 1]."""
CALIBRATION_APART, RATIO_APART = 0.01, 1.05
"""Differences that count: of calibration errors, and the ratio of speeds and sizes."""


@dataclass(frozen=True)
class Measured:
    """Measurements of one network on test images.

    Attributes:
        images, attacked: numbers of images.
        accuracy: without change.
        calibration_error: expected calibration error, of the better way to read the scores.
        noise, attack: accuracy under Gaussian noise, and under PGD.
    """

    images: int
    attacked: int
    accuracy: float
    calibration_error: float
    noise: float
    attack: float

    def to_dict(self) -> dict[str, float]:
        """Plain values."""
        return asdict(self)


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
    noise = replace(CORRUPTIONS["noise"], severities=(0, NOISE))
    measured = {}
    for label, one in zip(runs, trained, strict=True):
        answers = collect_answers(one.model, one.split)
        errors = [
            expected_calibration_error(reliability(confidences(answers.scores, way), answers.labels))
            for way in ways_of(answers.kind)
        ]
        check_attack("pgd", EPSILON, STEPS, 1, "cross_entropy", one.model)
        few = part_of(one, answers, ATTACKED, seed)
        clean = answers if few is one else collect_answers(few.model, few.split)
        points = attack_curve("pgd", few.model, few.split, clean, (EPSILON,), steps=STEPS, seed=seed)
        noisy = corruption_curve(noise, one.model, one.split, answers, seed=seed)
        measured[label] = Measured(
            len(answers.labels), len(clean.labels), answers.accuracy, min(errors), noisy[-1].accuracy,
            points[-1].accuracy,
        )  # fmt: skip
    return measured


def _clearly(one: float, two: float, images: int) -> bool:
    """Whether two shares of so many images differ by more than two standard errors of their difference."""
    mean = (one + two) / 2
    return abs(one - two) > 2 * math.sqrt(2 * mean * (1 - mean) / max(images, 1))


def better_at(
    one: Measured, two: Measured, cost: Mapping[str, tuple[float, float]], least: Sequence[str] = ()
) -> tuple[list[str], list[str], list[str]]:
    """At what the first of two networks is better, at what it is worse, and where there is no clear difference.

    Args:
        one, two: their measurements.
        cost: further quantities by name, of both; more is better.
        least: names in `cost` of which less is better.
    """
    better: list[str] = []
    worse: list[str] = []
    same: list[str] = []

    def put(words: str, clear: bool, first: bool) -> None:
        (same if not clear else better if first else worse).append(words)

    shares = {
        "accuracy": (one.accuracy, two.accuracy, one.images),
        "accuracy under noise": (one.noise, two.noise, one.images),
        "accuracy under attack": (one.attack, two.attack, one.attacked),
    }
    for name, (a, b, images) in shares.items():
        put(f"{name} ({100 * a:.1f} and {100 * b:.1f} %)", _clearly(a, b, images), a > b)
    a, b = one.calibration_error, two.calibration_error
    put(f"calibration error ({100 * a:.1f} and {100 * b:.1f} %)", abs(a - b) > CALIBRATION_APART, a < b)
    for name, (a, b) in cost.items():
        clear = max(a, b) > RATIO_APART * min(a, b)
        put(f"{name} ({a:,.0f} and {b:,.0f})", clear, (a < b) == (name in least))
    return better, worse, same
