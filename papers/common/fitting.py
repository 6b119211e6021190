"""Fits without a recipe: the trainer's order, learning rate and optimiser step for any loss of a batch."""

import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from mereo.data import Augmentation, Batch
from mereo.data.images import Images
from mereo.runtime.text import duration
from mereo.training.config import TrainConfig
from mereo.training.order import epoch_order, generator
from mereo.training.schedule import learning_rate
from mereo.training.step import descend


def fit(
    loss: Callable[[Batch], Tensor],
    parameters: Iterable[Tensor],
    images: Images,
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    device: torch.device,
    title: str,
    say: Callable[[str], None],
    seed: int = 0,
    augmentation: Augmentation | None = None,
) -> list[float]:
    """Minimise `loss` over the images with Adam; the mean loss of each epoch.

    The rate falls to a tenth along a cosine. Order and pairs are functions of (seed, epoch, step), as in training. The
    last batch of an epoch has the remaining images.
    """
    config = TrainConfig(epochs=epochs, lr=lr, min_lr=lr / 10, warmup_epochs=0.0, seed=seed)
    optimizer = torch.optim.Adam(list(parameters), lr=lr)
    fitted = _Fit(loss, optimizer, images, config, batch_size, device, title, say, augmentation)
    for epoch in range(epochs):
        fitted.begin_epoch(epoch)
        for step in range(fitted.steps):
            fitted.step(epoch, step)
        fitted.end_epoch(epoch)
    return fitted.history


class _Fit:
    """The state of one fit between its steps; it takes the arguments of `fit`."""

    def __init__(
        self,
        loss: Callable[[Batch], Tensor],
        optimizer: torch.optim.Optimizer,
        images: Images,
        config: TrainConfig,
        batch_size: int,
        device: torch.device,
        title: str,
        say: Callable[[str], None],
        augmentation: Augmentation | None = None,
    ) -> None:
        self.augmentation = augmentation
        self.loss, self.optimizer, self.images, self.config = loss, optimizer, images, config
        self.batch_size, self.device, self.title, self.say = batch_size, device, title, say
        self.steps = -(-len(images) // batch_size)
        self.history: list[float] = []
        self.began = self.reported = time.monotonic()

    def begin_epoch(self, epoch: int) -> None:
        """Order the images."""
        self.total = 0.0
        self.parts = epoch_order(self.config.seed, epoch, len(self.images)).split(self.batch_size)

    def step(self, epoch: int, step: int) -> None:
        """One step of Adam, and a line every ten seconds."""
        number, all_steps, indices = epoch * self.steps + step, self.config.epochs * self.steps, self.parts[step]
        draws = generator(self.config.seed, "augment", epoch, step)
        batch = self.images.batch(indices, augmentation=self.augmentation, generator=draws, device=self.device)
        value = self.loss(batch)
        descend(self.optimizer, learning_rate(self.config, number, self.steps), value)
        self.total += value.item() * len(indices)
        now, done = time.monotonic(), number + 1
        if now - self.reported > 10:
            self.reported, left = now, (now - self.began) * (all_steps - done) / done
            self.say(f"{self.title}: step {done:,} of {all_steps:,}, {duration(left)} left")

    def end_epoch(self, epoch: int) -> None:
        """Keep and print the mean loss."""
        self.history.append(self.total / len(self.images))
        self.say(f"{self.title}: epoch {epoch + 1}/{self.config.epochs}, loss {self.history[-1]:.4f}")


def batches(images: Images, batch_size: int, device: torch.device) -> Iterable[Batch]:
    """All images in order, without changes."""
    for indices in torch.arange(len(images)).split(batch_size):
        yield images.batch(indices, device=device)
