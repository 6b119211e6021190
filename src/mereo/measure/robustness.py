"""Accuracy of several trained networks under changes that they were not trained for, on the same test images."""

import hashlib
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from mereo.data.sets import find_dataset
from mereo.inference.answers import collect_answers
from mereo.inference.metrics import chance_accuracy, confusion_matrix
from mereo.measure.attack_stage import accuracy_under
from mereo.measure.classification import least_calibration_error
from mereo.measure.conclusions import CALIBRATION_APART, clearly_apart
from mereo.measure.corruptions import CORRUPTIONS
from mereo.measure.couplings import coupling_effect
from mereo.measure.curves import corruption_curve
from mereo.measure.trained_models import TrainedModel, load_trained_models
from mereo.runtime import printing
from mereo.runtime.text import heading, percent
from mereo.training.measurement_cache import cached_measurement
from mereo.training.run_folder import RunFolder

IMAGES, ATTACKED = 512, 128
"""Largest numbers of test images, and of attacked images."""
EPSILON, STEPS = 0.02, 10
"""Bound and steps of APGD, of pixels in [0, 1]."""
CHANGES = ("rotation", "translation", "occlusion")
COMPARED = ("accuracy", "familiar_viewpoints", *CHANGES, "apgd", "calibration_error")


@dataclass(frozen=True)
class Robustness:
    """Measurements of one network; accuracies are shares, None if the data set has no such images.

    Attributes:
        accuracy: without change.
        familiar_viewpoints: at the viewpoints of training, if the test images have new ones.
        rotation, translation, occlusion: mean over the severities of the corruption.
        apgd: under APGD.
        calibration_error: expected calibration error, of the better way to read the scores.
        couplings_uniform, couplings_shuffled: with replaced couplings; None without couplings.
        images, attacked: numbers of images.
        curves: (severity, accuracy) of each of these corruptions and of no change.
        chance: accuracy of predictions that do not depend on the images; None with fewer than two classes among them.
    """

    accuracy: float
    familiar_viewpoints: float | None
    rotation: float
    translation: float
    occlusion: float
    apgd: float
    calibration_error: float
    couplings_uniform: float | None
    couplings_shuffled: float | None
    images: int
    attacked: int
    curves: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    chance: float | None = None

    def to_dict(self) -> dict[str, float | None]:
        """Plain values, without the curves."""
        return {name: value for name, value in vars(self).items() if name != "curves"}


def beside_plain(measured: Mapping[str, Robustness], plain: Collection[str]) -> list[str]:
    """A line for each measurement: the best network, the best plain one, and how many differ clearly from that.

    Clearly is by more than two standard errors, and for the calibration error by more than CALIBRATION_APART.

    Args:
        measured: of all networks.
        plain: names of the plain ones.
    """
    others = [name for name in measured if name not in plain]
    lines = []
    for what in COMPARED if others and plain else ():
        values = {name: getattr(each, what) for name, each in measured.items()}
        if None in values.values():
            continue
        sign = -1 if what == "calibration_error" else 1
        best, known = (max(names, key=lambda name: sign * values[name]) for names in (others, plain))
        first = measured[known]
        images = first.attacked if what == "apgd" else first.images
        gains = [
            sign * (values[name] - values[known])
            for name in others
            if (
                abs(values[name] - values[known]) > CALIBRATION_APART
                if sign < 0
                else clearly_apart(values[name], values[known], images)
            )
        ]
        counts = [sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)]
        title = heading(what)
        lines.append(
            f"{title[0].upper()}{title[1:]}: {percent(values[best], 1)} for {best}, and"
            f" {percent(values[known], 1)} for {known}, the best plain network; of the {len(others)} others"
            f" {counts[0]} are clearly better than it and {counts[1]} clearly worse."
        )
    return lines


def familiar_data(data: str) -> str | None:
    """The name of the same data set with test images at the viewpoints of training.

    None if the data set has no such images, or if `data` already names them.
    """
    info = find_dataset(data)
    if info is None or "familiar" not in info.options or "viewpoints=" not in data or "familiar=true" in data:
        return None
    return f"{data},familiar=true"


def measure_robustness(
    runs: Mapping[str, Path], data: str, data_root: str | None = None, device: str = "auto", seed: int = 0,
    say: Callable[[str], None] = printing.say,
) -> dict[str, Robustness]:  # fmt: skip
    """Measure trained networks on the same test images.

    What is measured of a network is kept in its folder, so that an interrupted comparison does not measure it again.

    Args:
        runs: their run folders, by label.
        data, data_root: of the images.
        device: of the networks.
        seed: of every random choice.
        say: called with a line for each network.
    """
    settings = {
        "data": data, "seed": seed, "images": IMAGES, "attacked": ATTACKED, "epsilon": EPSILON, "steps": STEPS,
        "changes": {name: CORRUPTIONS[name].severities for name in CHANGES},
        # A file from before a measurement was added is measured again.
        "fields": [each.name for each in fields(Robustness)],
    }  # fmt: skip
    measured = {}
    for number, (label, folder) in enumerate(runs.items(), start=1):

        def measure(folder: Path = folder) -> dict[str, Any]:
            return asdict(_measure(folder, data, data_root, device, seed))

        say(f"{number}/{len(runs)} {label}: changed images")
        results = RunFolder(folder).results
        trained = hashlib.sha256(results.read_bytes()).hexdigest() if results.exists() else ""
        measured[label] = Robustness(
            **cached_measurement(folder / "robustness.json", settings | {"results": trained}, measure)
        )
    return measured


def _measure(folder: Path, data: str, data_root: str | None, device: str, seed: int) -> Robustness:
    """One network."""

    def load(name: str) -> TrainedModel:
        (one,) = load_trained_models([folder], data=name, data_root=data_root, limit=IMAGES, device=device, seed=seed)
        return one

    one, other = load(data), familiar_data(data)
    known = None if other is None else load(other)
    answers = collect_answers(one.model, one.split)
    curves = {name: corruption_curve(name, one.model, one.split, answers, seed=seed) for name in CHANGES}
    means = {name: statistics.mean(p.accuracy for p in points if p.amount) for name, points in curves.items()}
    attacked = accuracy_under(one, answers, "apgd", EPSILON, STEPS, limit=ATTACKED, seed=seed)
    effect = coupling_effect(one.model, one.split, answers, seed=seed)
    return Robustness(
        accuracy=answers.accuracy,
        familiar_viewpoints=None if known is None else collect_answers(known.model, known.split).accuracy,
        apgd=attacked.accuracy,
        calibration_error=least_calibration_error(answers),
        couplings_uniform=None if effect is None else effect.uniform.value,
        couplings_shuffled=None if effect is None else effect.shuffled.value,
        images=len(answers.labels),
        attacked=attacked.total,
        curves={name: [(p.amount, p.accuracy) for p in points] for name, points in curves.items()},
        chance=chance_accuracy(confusion_matrix(answers.predicted, answers.labels, len(one.class_names))),
        **means,
    )
