"""The loop by which experiments fit what has no recipe: Adam over random batches, telling how far it is."""

import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from mereo.data import Batch
from mereo.data.images import Images
from mereo.runtime.text import duration


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
    """Minimise `loss` over the images; the mean loss of each epoch.

    The rate falls to a tenth along a cosine. Order and pairs are functions of the seed.
    """
    optimiser = torch.optim.Adam(list(parameters), lr=lr)
    generator = torch.Generator().manual_seed(seed)
    steps = epochs * -(-len(images) // batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps, eta_min=lr / 10)
    history, began, told, done = [], time.monotonic(), time.monotonic(), 0
    for epoch in range(epochs):
        total = 0.0
        for indices in torch.randperm(len(images), generator=generator).split(batch_size):
            batch = images.batch(indices, generator=generator, device=device)
            value = loss(batch)
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            schedule.step()
            done += 1
            total += value.item() * len(indices)
            now = time.monotonic()
            if now - told > 10:
                told = now
                say(f"{title}: step {done:,} of {steps:,}, {duration((now - began) * (steps - done) / done)} left")
        history.append(total / len(images))
        say(f"{title}: epoch {epoch + 1}/{epochs}, loss {history[-1]:.4f}")
    return history


def batches(images: Images, batch_size: int, device: torch.device) -> Iterable[Batch]:
    """All images in order, without changes."""
    for indices in torch.arange(len(images)).split(batch_size):
        yield images.batch(indices, device=device)
