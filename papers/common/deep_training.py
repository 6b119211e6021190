"""Short trainings of small deep networks on the same images in the same order, and their curves."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.data import Batch, Splits, load_splits
from mereo.data.split import stratified
from mereo.errors import MereoError
from papers.common.fitting import fit
from papers.common.settings import Settings

STEPS, IMAGES, TESTED, BATCH, RATE = 192, 2048, 1000, 64, 2e-3
"""Steps of a training, training images, test images, images of a step, and the learning rate, without a warm-up."""
SIZE = 32


@dataclass(frozen=True)
class Curve:
    """One training.

    Attributes:
        losses: of each step, as far as they are finite.
        finite: whether all of them were.
        accuracy: on test images, in percent.
        seconds: how long it took.
        parameters: of the network.
    """

    losses: list[float]
    finite: bool
    accuracy: float
    seconds: float
    parameters: int = 0

    @property
    def end(self) -> float:
        """The mean loss of the last tenth of the steps."""
        if not self.losses:
            return math.inf
        last = self.losses[-max(1, len(self.losses) // 10) :]
        return sum(last) / len(last)

    def smooth(self, steps: int = 12) -> list[float]:
        """The mean of the last `steps` losses at each step."""
        return [
            sum(window) / len(window)
            for end in range(1, len(self.losses) + 1)
            if (window := self.losses[max(0, end - steps) : end])
        ]


class _DivergedError(Exception):
    """The loss is not finite."""


def small_images(
    settings: Settings, images: int = IMAGES, size: int = SIZE, usual: str = "cifar10", name: str = "CIFAR-10"
) -> tuple[str, Splits]:
    """The given data; if the usual data are not on this machine, the digits of the package replace them.

    Args:
        images: for training, if `settings.limit` gives none.
        size: side of the images.
        usual, name: the data set that the digits may replace, and its name in the line that reports this.
    """

    def read(data: str, download: bool) -> Splits:
        return load_splits(
            data, root=settings.data_root, img_size=size, limit=settings.limit or images, validation_fraction=0.0,
            download=download,
        )  # fmt: skip

    data = str(settings.data)
    if data != usual:
        return data, read(data, True)
    try:
        return data, read(data, False)
    except MereoError:
        settings.say(f"{name} is not on this machine (--data-root, MEREO_DATA): trained on the digits of the package.")
        return "digits", read("digits", False)


def train_short(
    make: Callable[[tuple[int, int, int], int], nn.Module],
    splits: Splits,
    settings: Settings,
    title: str,
    seed: int,
    epochs: int | None = None,
    rate: float = RATE,
) -> Curve:
    """Train a network and test it; a training whose loss is no longer finite ends there.

    Args:
        make: (image shape, number of classes) -> a network.
        splits: the images.
        settings: epochs, batch_size and device, where given.
        title: for lines of progress.
        seed: of the network and of the order of images.
        epochs: if the settings give none; by default the epochs that make `STEPS` steps.
        rate: the first learning rate.
    """
    device, size = settings.chosen_device(), settings.batch_size or BATCH
    train, test = splits.train, splits.test
    torch.manual_seed(seed)
    model = make(train.image_shape, len(splits.class_names)).to(device)
    steps = -(-len(train) // size)
    losses: list[float] = []

    def loss(batch: Batch) -> Tensor:
        value = F.cross_entropy(model(2 * batch.images - 1), batch.labels)
        losses.append(value.item())
        if not math.isfinite(losses[-1]):
            raise _DivergedError
        return value

    how: dict[str, Any] = {"batch_size": size, "lr": rate, "device": device, "seed": seed, "title": title}
    began, finite = time.monotonic(), True
    try:
        count = settings.epochs or epochs or -(-STEPS // steps)
        fit(loss, model.parameters(), train, epochs=count, say=lambda line: None, **how)
    except _DivergedError:
        losses.pop()
        finite = False
    seconds = time.monotonic() - began
    everything = test.batch(torch.arange(len(test)))
    chosen = stratified(everything.labels, settings.images or TESTED, 0)[1]
    images, labels = everything.images[chosen].to(device), everything.labels[chosen].to(device)
    with torch.no_grad():
        answers = [model.eval()(2 * part - 1).argmax(1) for part in images.split(250)]
    accuracy = 100 * (torch.cat(answers) == labels).float().mean().item()
    curve = Curve(losses, finite, accuracy, seconds, sum(p.numel() for p in model.parameters()))
    settings.say(f"{title}: loss {curve.end:.3f}, test {curve.accuracy:.1f} %, {seconds:.0f} s")
    return curve
