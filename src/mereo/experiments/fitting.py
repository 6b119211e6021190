"""Fits without a recipe: the engine's order, learning rate and optimiser step for any loss of a batch."""

import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from mereo.data import Batch
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
) -> list[float]:
    """Minimise `loss` over the images with Adam; the mean loss of each epoch.

    The rate falls to a tenth along a cosine. Order and pairs are functions of (seed, epoch, step), as in training. The
    last batch of an epoch has the remaining images.
    """
    config = TrainConfig(epochs=epochs, lr=lr, min_lr=lr / 10, warmup_epochs=0.0, seed=seed)
    optimizer = torch.optim.Adam(list(parameters), lr=lr)
    steps = -(-len(images) // batch_size)
    history, began = [], time.monotonic()
    reported = began
    for epoch in range(epochs):
        total = 0.0
        for step, indices in enumerate(epoch_order(seed, epoch, len(images)).split(batch_size)):
            number = epoch * steps + step
            batch = images.batch(indices, generator=generator(seed, "augment", epoch, step), device=device)
            value = loss(batch)
            descend(optimizer, learning_rate(config, number, steps), [value])
            total += value.item() * len(indices)
            now, done = time.monotonic(), number + 1
            if now - reported > 10:
                reported, left = now, (now - began) * (epochs * steps - done) / done
                say(f"{title}: step {done:,} of {epochs * steps:,}, {duration(left)} left")
        history.append(total / len(images))
        say(f"{title}: epoch {epoch + 1}/{epochs}, loss {history[-1]:.4f}")
    return history


def batches(images: Images, batch_size: int, device: torch.device) -> Iterable[Batch]:
    """All images in order, without changes."""
    for indices in torch.arange(len(images)).split(batch_size):
        yield images.batch(indices, device=device)
