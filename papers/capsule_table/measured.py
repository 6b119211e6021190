"""What is measured of a trained network on the test images, as a row of the table."""

import base64
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.data.split import stratified
from mereo.inference.answers import collect_answers
from mereo.inference.flops import forward_flops
from mereo.inference.temperature import calibration_of
from mereo.measure.attack_stage import accuracy_under
from mereo.measure.classification import calibrated_error
from mereo.measure.corruptions import CORRUPTIONS, Corruption
from mereo.measure.couplings import coupling_effect
from mereo.measure.curves import corruption_curve
from mereo.measure.robustness import familiar_data
from mereo.measure.trained_models import load_trained_models
from papers.capsule_table.protocol import LINEAR
from papers.capsule_table.rows import Row

CHANGED, ATTACKED, SEED = 1000, 200, 0
EPSILON, STEPS = 0.05, 20
"""Bound and steps of APGD, of pixels in [0, 1]."""


def _shrink(images: Tensor, percent: float, draws: Tensor) -> Tensor:
    """Made smaller by that share of the side around the centre; zeros fill the border."""
    scale = 1 / (1 - percent / 100)
    turn = torch.tensor([[scale, 0.0, 0.0], [0.0, scale, 0.0]], device=images.device).expand(len(images), 2, 3)
    grid = F.affine_grid(turn, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


SCALE = Corruption("scale", "% smaller", (0, 10, 20, 30, 40), 1, _shrink)
CHANGES: Mapping[str, Corruption] = {
    "rotation": replace(CORRUPTIONS["rotation"], severities=(0, 15, 30, 45)),
    "translation": replace(CORRUPTIONS["translation"], severities=(0, 5, 10, 20)),
    "scale": SCALE,
    "occlusion": replace(CORRUPTIONS["occlusion"], severities=(0, 20, 40)),
    "noise": replace(CORRUPTIONS["noise"], severities=(0, 0.1, 0.2, 0.3)),
}


@dataclass(frozen=True)
class Measured(Row):
    """Measurements of one network; accuracies are shares of test images, NaN if they do not apply to a network.

    Attributes:
        kind, control, rate, seed, epochs: the network, its couplings, and its training.
        parameters, macs: of the network; multiply-adds of an image forward.
        accuracy: on all test images.
        rotation, translation, scale, occlusion, noise: means over the severities of `CHANGES`, of CHANGED images.
        apgd: under APGD, of ATTACKED images.
        calibration_error: expected calibration error after the temperature was fitted.
        uniform, shuffled: with couplings that were replaced after training.
        familiar: at the viewpoints of training.
        correct: which test images were classified correctly, a bit each, in base64.
    """

    kind: str
    control: str
    rate: float
    seed: int
    epochs: int
    parameters: int
    macs: int
    accuracy: float
    rotation: float
    translation: float
    scale: float
    occlusion: float
    noise: float
    apgd: float
    calibration_error: float
    uniform: float
    shuffled: float
    familiar: float
    correct: str

    @property
    def key(self) -> tuple[str, str, int]:
        """What tells it from others."""
        return self.kind, self.control, self.seed

    @property
    def bits(self) -> npt.NDArray[np.float64]:
        """1 for each test image that was classified correctly, else 0."""
        count, _, text = self.correct.partition(":")
        packed = np.frombuffer(base64.b64decode(text), np.uint8)
        return np.unpackbits(packed)[: int(count)].astype(np.float64)


def _packed(correct: Tensor) -> str:
    bits = np.packbits(correct.numpy().astype(np.uint8))
    return f"{len(correct)}:{base64.b64encode(bits.tobytes()).decode()}"


def measure(
    kind: str, control: str, rate: float, seed: int, epochs: int, folder: Path, data: str, given: Mapping[str, Any],
    images: int | None,
) -> Measured:  # fmt: skip
    """Measure a trained network.

    Args:
        kind, control, rate, seed, epochs: of the network.
        folder: of its run.
        data: whose test images are used.
        given: fields of its configuration.
        images: most test images; all when None.
    """
    root = given.get("data_root")
    (one,) = load_trained_models([folder], data=data, data_root=root, limit=images, device=given.get("device", "cpu"))
    answers = collect_answers(one.model, one.split)
    few = min(CHANGED, len(one.split))
    part = one.split.subset(stratified(one.split.strata, few, SEED)[1]) if few < len(one.split) else one.split
    clean = collect_answers(one.model, part)
    curves = {name: corruption_curve(each, one.model, part, clean, seed=SEED) for name, each in CHANGES.items()}
    shares = {name: statistics.mean(p.accuracy for p in points if p.amount) for name, points in curves.items()}
    effect = None if control == LINEAR else coupling_effect(one.model, part, clean, seed=SEED)
    error = calibrated_error(answers, calibration_of(one.model)).get("calibrated", {})
    other = familiar_data(data)
    known = None
    if other is not None:
        (same,) = load_trained_models(
            [folder], data=other, data_root=root, limit=images, device=given.get("device", "cpu")
        )
        known = collect_answers(same.model, same.split).accuracy
    return Measured(
        kind=kind, control=control, rate=rate, seed=seed, epochs=epochs,
        parameters=sum(p.numel() for p in one.model.parameters() if p.requires_grad),
        macs=forward_flops(one.model) // 2,
        accuracy=answers.accuracy,
        apgd=accuracy_under(one, answers, "apgd", EPSILON, STEPS, limit=ATTACKED, seed=SEED).accuracy,
        calibration_error=float(error.get("ece", "nan")),
        uniform=float("nan") if effect is None else effect.uniform.value,
        shuffled=float("nan") if effect is None else effect.shuffled.value,
        familiar=float("nan") if known is None else known,
        correct=_packed(answers.correct),
        **shares,
    )  # fmt: skip
