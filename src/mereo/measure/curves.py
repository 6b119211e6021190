"""Accuracy over the severity of a corruption, and over the epsilon of an attack."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from mereo.data import Images
from mereo.data.counter import uniform
from mereo.errors import UsageError
from mereo.inference.answers import Answers, check_one_label, collect_answers
from mereo.inference.metrics import wilson_interval
from mereo.inference.mode import evaluating
from mereo.measure.attacks.attack import attack, check_attack
from mereo.measure.attacks.target import Target
from mereo.measure.corruptions import CORRUPTIONS, Corruption
from mereo.models import VisionModel

Progress = Callable[[int], None]


class Point(NamedTuple):
    """One point of a curve: severity or epsilon, and how many of the images are still classified correctly."""

    amount: float
    correct: int
    total: int

    @property
    def accuracy(self) -> float:
        """Share of the images that are classified correctly."""
        return self.correct / max(self.total, 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with Wilson's 95 % interval."""
        low, high = wilson_interval(self.accuracy, self.total)
        return {
            "amount": self.amount,
            "images": self.total,
            "accuracy": self.accuracy,
            "accuracy_low": low,
            "accuracy_high": high,
        }


def check_epsilons(epsilons: Sequence[float]) -> tuple[float, ...]:
    """Each epsilon once, ascending, with 0 at the start; UsageError outside [0, 1]."""
    for epsilon in epsilons:
        if not (math.isfinite(epsilon) and 0 <= epsilon <= 1):
            raise UsageError(f"epsilon is {epsilon}; it must be between 0 and 1, the range of a pixel.")
    return tuple(sorted({0.0, *epsilons}))


def corruption_curve(
    corruption: str | Corruption,
    model: VisionModel,
    split: Images,
    clean: Answers,
    *,
    seed: int = 0,
    batch_size: int = 256,
    progress: Progress | None = None,
) -> list[Point]:
    """Accuracy over the severities of a corruption.

    Args:
        corruption: its name, or one of your own.
        model: any classifier.
        split: images of one label each, or of several.
        clean: the predictions for the images without corruption.
        seed: of the random choices.
        batch_size: images worked on at once.
        progress: called with the number of images done since the last call.
    """
    chosen = CORRUPTIONS[corruption] if isinstance(corruption, str) else corruption
    points = []
    for severity in chosen.severities:
        answers = clean
        if severity:
            answers = collect_answers(
                model, split, batch_size=batch_size, progress=progress,
                change=partial(_changed, chosen, severity, seed),
            )  # fmt: skip
        points.append(Point(severity, int(answers.correct.sum()), len(answers.labels)))
    return points


def attack_curve(
    name: str,
    model: VisionModel,
    split: Images,
    clean: Answers,
    epsilons: Sequence[float],
    *,
    steps: int | None = None,
    restarts: int = 1,
    loss: str = "cross_entropy",
    seed: int = 0,
    batch_size: int = 256,
    progress: Progress | None = None,
) -> list[Point]:
    """Accuracy under an attack over its epsilon.

    Images misclassified before the attack count as errors at every epsilon; only the others are attacked. Each epsilon
    is attacked independently, so a rising curve shows an attack that fails.

    Args:
        name: of the attack.
        model: any classifier.
        split: images of one label each.
        clean: the predictions for the images before the attack.
        epsilons: in any order; 0 is added.
        steps, restarts, loss: of the attack.
        seed: of its random choices.
        batch_size: images worked on at once.
        progress: called with the number of images done since the last call.
    """
    check_one_label(split)
    device, crop = next(model.parameters()).device, (model.image_shape[1], model.image_shape[2])
    places = clean.correct.nonzero().flatten()
    points = []
    for epsilon in check_epsilons(epsilons):
        check_attack(name, epsilon, steps, restarts, loss, model)
        withstood = len(places)
        for part in places.split(batch_size) if epsilon and len(places) else ():
            # The seed of a batch follows from its first image, not from the images attacked before.
            drawn = int(uniform(seed, part[:1], 1)[0, 0] * 2**62)
            images, labels, *_ = split.batch(part, crop=crop, device=device)
            changed = attack(
                name, model, images, labels, epsilon, steps=steps, restarts=restarts, loss=loss, seed=drawn
            )
            withstood -= int((answer(model, changed) != labels).sum())
            if progress is not None:
                progress(len(part))
        points.append(Point(epsilon, withstood, len(clean.labels)))
    return points


def _changed(corruption: Corruption, severity: float, seed: int, images: Tensor, indices: Tensor) -> Tensor:
    return corruption(images, severity, indices, seed)


def answer(model: VisionModel, images: Tensor) -> Tensor:
    """The class of the highest score of images in [0, 1]: int64 (batch,)."""
    with evaluating(model):
        return Target(model).scores(images).argmax(1)
