"""Ends a training that learns nothing, so that another network gets the time that is left."""

import math
from typing import TYPE_CHECKING, Any

import torch

from mereo.errors import MereoError

if TYPE_CHECKING:
    from mereo.training.run_folder import RunFolder

SHARE, FEWEST_EPOCHS = 0.2, 3
"""Of the epochs, and epochs, after which a training must have learned something."""
FEWEST_IMAGES = 50
"""Validation images below which nothing is concluded from the accuracy."""
LEARNED = 0.15
"""Share of the way from guessing the largest class to no error that must have been gone by then."""


class NotLearningError(MereoError):
    """A training that predicts no better than its largest class.

    Attributes:
        folder: of the run.
        seconds: spent.
    """

    def __init__(self, folder: "RunFolder", epochs: int, accuracy: float, largest: float, seconds: float) -> None:
        super().__init__(
            f"hardly anything is learned: {accuracy:.1%} of the validation images are right after {epochs} epochs, and"
            f" {largest:.1%} of them are of one class; try another --model, a larger --img-size or more --epochs"
        )
        self.folder, self.epochs, self.accuracy, self.largest, self.seconds = folder, epochs, accuracy, largest, seconds


def least_accuracy(largest: float) -> float:
    """The accuracy of a training that learns, where the largest class has this share of the images."""
    return largest + LEARNED * (1 - largest)


def checked_after(epochs: int) -> int:
    """The epoch, counted from 1, after which a training of so many epochs is checked."""
    return max(math.ceil(SHARE * epochs), FEWEST_EPOCHS)


class Learning:
    """The callback `learning`: raises NotLearningError once, after a fifth of the epochs.

    It looks at the validation images only, and changes nothing of a training that learns.
    """

    def on_epoch_start(self, trainer: Any, epoch: int) -> None:
        """Nothing."""

    def on_epoch_end(self, trainer: Any, epoch: int, row: dict[str, Any]) -> None:
        """Check the last epochs, where it is time: their mean, because a single one is right by chance more often."""
        held = trainer.splits.validation
        if epoch + 1 != checked_after(trainer.config.epochs) or epoch + 1 == trainer.config.epochs:
            return
        if held is None or len(held) < FEWEST_IMAGES or row.get("val_accuracy") is None:
            return
        last = [earlier["val_accuracy"] for earlier in trainer.history[-FEWEST_EPOCHS:]]
        accuracy = sum(last) / len(last)
        largest = torch.bincount(held.strata).max().item() / len(held)
        if accuracy < least_accuracy(largest):
            raise NotLearningError(trainer.folder, epoch + 1, accuracy, largest, trainer.seconds)

    def state(self) -> dict[str, Any]:
        """Nothing to keep."""
        return {}

    def restore(self, trainer: Any, state: dict[str, Any]) -> None:
        """Nothing to restore."""
