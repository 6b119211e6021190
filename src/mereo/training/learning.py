"""Ends a training that learns too little, so that another network can take its place."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from mereo.errors import MereoError, UsageError
from mereo.runtime.text import percent
from mereo.training.config import TrainConfig

if TYPE_CHECKING:
    from mereo.training.run_folder import RunFolder

SHARE, FEWEST_EPOCHS = 0.2, 3
"""A training is checked after this fraction of its epochs, but not before this many."""
FEWEST_IMAGES = 50
"""Validation images below which nothing is concluded from the accuracy."""
LEARNED, PROMISING = 0.15, 0.5
"""Least accuracy of a training that learns, and of one that another network need not replace, on a scale from 0,
guessing the largest class, to 1, no error. On the sets of `mereo reproduce defaults` and on CIFAR-10 networks were
either below 0.3, where a plain one ended clearly better, or above 0.7, where it did not."""


class NotLearningError(MereoError):
    """A training that after a fifth of its epochs predicts hardly better than guessing.

    Attributes:
        folder: of the run.
        epochs: that were trained.
        accuracy: mean of the last epochs, on the validation images.
        largest: fraction of the validation images that are of the largest class.
        seconds: spent.
        given: the fields that the user gave, by name; None where they are unknown.
    """

    def __init__(
        self,
        *,
        folder: "RunFolder",
        epochs: int,
        accuracy: float,
        largest: float,
        seconds: float,
        given: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(
            f"the accuracy on the validation images is {percent(accuracy, 1)} after {epochs} epochs, where guessing the"
            f" largest class gives {percent(largest, 1)}; try another --model, a larger --img-size or more --epochs"
        )
        self.folder, self.epochs, self.accuracy, self.largest = folder, epochs, accuracy, largest
        self.seconds, self.given = seconds, given


def least_accuracy(largest: float, *, replaceable: bool = False) -> float:
    """The accuracy of a training that goes on, where the largest class has this share of the images.

    Args:
        largest: fraction of the images that are of the largest class.
        replaceable: whether another network is trained in its place; then more is expected of it.
    """
    return largest + (PROMISING if replaceable else LEARNED) * (1 - largest)


def checked_after(epochs: int) -> int:
    """The epoch, counted from 1, after which a training of so many epochs is checked."""
    return max(math.ceil(SHARE * epochs), FEWEST_EPOCHS)


class Learning:
    """The callback `learning`: raises NotLearningError once, after a fifth of the epochs.

    It looks at the validation images only, and changes nothing of a training that learns.
    """

    given: Mapping[str, Any] | None = None
    """The fields that the user gave at the start of the run, which a network in its place keeps."""

    def on_epoch_start(self, trainer: Any, epoch: int) -> None:
        """Keep what was given; the plan of a resumed run does not know it."""
        if epoch == 0:
            self.given = trainer.plan.given

    def on_epoch_end(self, trainer: Any, epoch: int, row: dict[str, Any]) -> None:
        """Check the mean of the last epochs, where it is time: a single epoch is more often good by chance."""
        held = trainer.splits.validation
        if epoch + 1 != checked_after(trainer.config.epochs) or epoch + 1 == trainer.config.epochs:
            return
        if held is None or len(held) < FEWEST_IMAGES or row.get("val_accuracy") is None:
            return
        last = [earlier["val_accuracy"] for earlier in trainer.history[-FEWEST_EPOCHS:]]
        accuracy = sum(last) / len(last)
        largest = torch.bincount(held.strata).max().item() / len(held)
        if accuracy < least_accuracy(largest, replaceable=self.given is not None):
            raise NotLearningError(
                folder=trainer.folder, epochs=epoch + 1, accuracy=accuracy, largest=largest, seconds=trainer.seconds,
                given=self.given,
            )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """The fields that were given."""
        return {"given": self.given}

    def restore(self, trainer: Any, state: dict[str, Any]) -> None:
        """Continue with what was given at the start; unknown for a checkpoint of a version that did not keep it."""
        try:
            given = state.get("given")
            self.given = None if given is None else {**given}
            TrainConfig().replace(**(self.given or {})).check()
        except (AttributeError, TypeError, UsageError) as error:
            raise UsageError(
                f"{trainer.folder.state} has no valid state of the callback learning ({str(error).rstrip('.')}); remove"
                " it to start from the beginning."
            ) from error
