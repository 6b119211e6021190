"""Probabilities from scores: one temperature, fitted on images that were not trained on.

    p_j = exp(s_j / T) / sum_k exp(s_k / T)

The order of the classes, and so the accuracy, does not change. The scores may be logits or lengths of capsules: of
lengths, which are below 1, T is small.

Source: Guo, Pleiss, Sun, Weinberger 2017, arXiv:1706.04599, section 4.2.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from mereo.data import Images
from mereo.errors import UsageError
from mereo.inference.answers import Answers, collect_answers
from mereo.inference.calibration import confidences, expected_calibration_error, reliability, ways_of
from mereo.models import VisionModel
from mereo.models.metadata import check_kinds

KEY = "calibration"
"""Key in the metadata of weights."""
MOST_TEST_IMAGES = 2000
"""Test images on which the error of calibration is measured at the end of a training, evenly spaced."""
_REACH, _STEPS = 1e3, 60
"""The temperature is between the spread of the scores over this and times this; steps of the search."""


@dataclass(frozen=True)
class Calibration:
    """A fitted temperature, and the calibration error (ECE, 15 bins) without and with it.

    Attributes:
        temperature: T.
        images: validation images on which it was fitted.
        ece_before, ece_after: on those images.
        test_images: images of the test split on which the next two were measured; 0 for none.
        test_ece_before, test_ece_after: on those images, which neither the weights nor T have seen.
    """

    temperature: float
    images: int
    ece_before: float
    ece_after: float
    test_images: int = 0
    test_ece_before: float = 0.0
    test_ece_after: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they are stored with weights."""
        return asdict(self)


def probabilities(scores: Tensor, temperature: float) -> Tensor:
    """softmax(scores / T). Shapes: (n, classes) -> float64 (n, classes)."""
    if not (math.isfinite(temperature) and temperature > 0):
        raise UsageError(f"temperature is {temperature}; it must be a positive number.")
    return (scores.double() / temperature).softmax(1)


def fit_temperature(scores: Tensor, labels: Tensor) -> float:
    """The temperature with the smallest negative log-likelihood of images that were not trained on.

    T = argmin_T -mean_n sum_j t_nj log p_nj,   t_nj = 1 - e for the label and e / (classes - 1) for the others,
    e = 1 / (n + 2)

    Args:
        scores: of the classes.
        labels: the true class.

    Deviates: the labels are smoothed as in Platt scaling, so that n images without an error do not make a network that
    is certain of everything.

    Shapes: scores (n, classes), labels int64 (n,).

    Reference: arXiv:1706.04599, section 4.2; Platt 1999, Probabilistic outputs for support vector machines, section
    2.2, for the smoothing.
    """
    if scores.dim() != 2 or labels.shape != scores.shape[:1] or not len(labels):
        raise UsageError(f"scores are {tuple(scores.shape)} for labels {tuple(labels.shape)}; give (n, classes), (n,).")
    if not bool(scores.isfinite().all()):
        raise UsageError("scores has entries that are not finite numbers; check the weights of the network.")
    wide, classes = scores.double(), scores.shape[1]
    centred = wide - wide.mean(1, keepdim=True)
    spread = float(centred.square().mean().sqrt())
    if classes < 2 or spread == 0:
        return 1.0
    smoothing = 1 / (len(labels) + 2)
    own = centred.gather(1, labels[:, None])[:, 0]
    wanted = (1 - smoothing) * own + smoothing / (classes - 1) * (centred.sum(1) - own)

    def surprise(log_t: float) -> float:
        inverse = math.exp(-log_t)
        return float(((centred * inverse).logsumexp(1) - wanted * inverse).mean())

    # The surprise is convex in 1 / T, so it has one minimum along log T.
    low, high = math.log(spread / _REACH), math.log(spread * _REACH)
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = surprise(left), surprise(right)
    for _ in range(_STEPS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = surprise(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = surprise(right)
    return math.exp((low + high) / 2)


def calibration_errors(answers: Answers, temperature: float) -> tuple[float, float]:
    """The expected calibration error without the temperature, see `confidences`, and with it."""

    def error(of: Tensor) -> float:
        return expected_calibration_error(reliability(of, answers.labels))

    return error(confidences(answers.scores, ways_of(answers.kind)[0])), error(
        probabilities(answers.scores, temperature)
    )


def calibrate(model: VisionModel, validation: Images, test: Images | None = None) -> Calibration:
    """Fit a temperature on images that were not trained on, and measure the calibration error without and with it.

    Args:
        model: a classifier; it runs in eval mode and is left as it was.
        validation: images of one label each, not trained on.
        test: other images, at most 2,000 of which are used; None measures on the validation images only.
    """
    answers = collect_answers(model, validation)
    temperature = fit_temperature(answers.scores, answers.labels)
    before, after = calibration_errors(answers, temperature)
    fitted = Calibration(temperature, len(validation), before, after)
    if test is None or not len(test):
        return fitted
    every = -(-len(test) // MOST_TEST_IMAGES)
    part = test if every == 1 else test.subset(torch.arange(0, len(test), every))
    before, after = calibration_errors(collect_answers(model, part), temperature)
    return Calibration(temperature, len(validation), fitted.ece_before, fitted.ece_after, len(part), before, after)


_KINDS: dict[str, type | tuple[type, ...]] = {
    name: (int if name in ("images", "test_images") else (int, float)) for name in Calibration.__dataclass_fields__
}


def calibration_of(model: VisionModel) -> Calibration | None:
    """The calibration that is stored with the weights of a model; None if they have none."""
    return check_calibration(model.metadata.get(KEY))


def check_calibration(table: Any) -> Calibration | None:
    """The calibration of plain values, as they are stored; None for None, UsageError for values of other kinds."""
    if table is None:
        return None
    check_kinds(table, _KINDS, f"{KEY} of the weights")
    if not 0 < table["temperature"] < math.inf:
        raise UsageError(f"temperature of the weights is {table['temperature']}; it must be positive.")
    return Calibration(**{name: table[name] for name in _KINDS})


def describe_calibration(model: VisionModel, fitted_on: str = "validation images") -> str | None:
    """How scores become the probabilities of `mereo predict`, for a model card; None without a temperature.

    Args:
        model: whose weights may hold one.
        fitted_on: which images fitted it.
    """
    fitted = calibration_of(model)
    if fitted is None:
        return None
    measured = fitted.test_images > 0
    before = fitted.test_ece_before if measured else fitted.ece_before
    after = fitted.test_ece_after if measured else fitted.ece_after
    where = f"{fitted.test_images:,} test images" if measured else "the same images"
    return (
        f"probabilities = softmax(scores / {fitted.temperature:.6g}), as `mereo predict` gives them. The temperature"
        f" was fitted to {fitted.images:,} {fitted_on}; the calibration error (15 bins) is {100 * after:.1f} % on"
        f" {where}, {100 * before:.1f} % without it."
    )
