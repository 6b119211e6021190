"""Fits without a recipe: the trainer's order, learning rate and optimiser step for any loss of a batch."""

import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

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
    weight_decay: float = 0.0,
    second_moment: float = 0.999,
    warmup_epochs: float = 0.0,
) -> list[float]:
    """Minimise `loss` over the images with AdamW; the mean loss of each epoch.

    The rate rises for `warmup_epochs`, and falls to a tenth along a cosine. Order and pairs are functions of (seed,
    epoch, step), as in training. The last batch of an epoch has the remaining images. `second_moment` is beta_2.
    """
    config = TrainConfig(epochs=epochs, lr=lr, min_lr=lr / 10, warmup_epochs=warmup_epochs, seed=seed)
    optimizer = torch.optim.AdamW(list(parameters), lr, (0.9, second_moment), weight_decay=weight_decay)
    steps, history = -(-len(images) // batch_size), list[float]()
    report = progress(say, title)
    for epoch in range(epochs):
        total = 0.0
        for step, indices in enumerate(epoch_order(seed, epoch, len(images)).split(batch_size)):
            draws, number = generator(seed, "augment", epoch, step), epoch * steps + step
            value = loss(images.batch(indices, augmentation=augmentation, generator=draws, device=device))
            descend(optimizer, learning_rate(config, number, steps), value)
            total += value.item() * len(indices)
            report(number + 1, epochs * steps)
        history.append(total / len(images))
        say(f"{title}: epoch {epoch + 1}/{epochs}, loss {history[-1]:.4f}")
    return history


def follow(schedule: LRScheduler, loss: Tensor, clip: float | None = None) -> None:
    """One step of a schedule and of its optimiser.

    Args:
        loss: whose gradients are taken.
        clip: the largest norm of all gradients.
    """
    optimizer = schedule.optimizer
    optimizer.zero_grad()
    loss.backward()
    if clip is not None:
        torch.nn.utils.clip_grad_norm_((p for group in optimizer.param_groups for p in group["params"]), clip)
    optimizer.step()
    schedule.step()


def progress(say: Callable[[str], None], title: str) -> Callable[[int, int], None]:
    """What reports (steps done, all steps) every ten seconds, with the time left."""
    began = reported = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal reported
        now = time.monotonic()
        if now - reported > 10:
            reported = now
            say(f"{title}: step {done:,} of {total:,}, {duration((now - began) * (total - done) / done)} left")

    return report


def batches(images: Images, batch_size: int, device: torch.device) -> Iterable[Batch]:
    """All images in order, without changes."""
    for indices in torch.arange(len(images)).split(batch_size):
        yield images.batch(indices, device=device)
