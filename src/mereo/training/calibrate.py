"""Calibrates the best weights of a run, and stores the temperature with them."""

from pathlib import Path
from typing import TYPE_CHECKING

from mereo.data import Splits
from mereo.inference.temperature import KEY, Calibration, calibrate
from mereo.models.weights import load_tensors, save_tensors
from mereo.tasks import Task

if TYPE_CHECKING:
    from mereo.models import VisionModel

FEWEST_IMAGES = 20
"""Validation images below which no temperature is fitted: it would follow single images."""


def calibrate_run(model: "VisionModel", task: Task, splits: Splits, *, chosen_on_test: bool) -> Calibration | None:
    """The temperature from the validation images; None for few or none, or for other tasks than one class an image.

    Args:
        chosen_on_test: whether the epoch was chosen on the test images, so that none are left to measure on.
    """
    held = splits.validation
    if held is None or len(held) < FEWEST_IMAGES or not task.scores_classes or held.labels_per_image > 1:
        return None
    return calibrate(model, held, None if chosen_on_test else splits.test)


def store_calibration(path: Path, calibration: Calibration) -> None:
    """Add a calibration to the metadata of a file of weights."""
    tensors, metadata = load_tensors(path)
    save_tensors(path, tensors, metadata | {KEY: calibration.to_dict()})
