"""Shapes that differ in one small detail, and a small vision transformer with and without dual cross-attention."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR

import mereo
from mereo.core import added_losses
from papers.common.fitting import follow
from papers.common.measures import with_spread
from papers.common.settings import Settings

SIDE, PATCH, DIM, DEPTH, HEADS, SHARE = 64, 8, 64, 4, 4, 0.2
IMAGES, TESTED, EPOCHS, BATCH, RATE = 2048, 1000, 10, 64, 1e-3
DETAILS = ("110 110 000", "111 111 000", "011 010 011", "101 010 101", "010 111 010", "111 101 111")
"""Cells of each detail, row by row. A class is one of them."""
CELL, STEP = 4, 4
"""Pixels of the side of a cell, and between places of a detail."""


def draw(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images of a disc or a square of any size, place and colour, with one bright detail on it, and their classes.

    Shapes: (count, 3, SIDE, SIDE) around 0, int64 (count,).
    """
    random = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=random)

    labels = torch.arange(count) % len(DETAILS)
    radius, round_ = uniform(16, 24, count), torch.rand(count, generator=random) < 0.5
    centre = radius[:, None] + uniform(0, 1, count, 2) * (SIDE - 2 * radius[:, None])
    away = (torch.arange(SIDE)[None, None] - centre[:, :, None]).abs()
    rows, columns = away[:, 0, :, None], away[:, 1, None]
    inside = torch.where(
        round_[:, None, None], rows**2 + columns**2 < radius[:, None, None] ** 2,
        torch.maximum(rows, columns) < 0.8 * radius[:, None, None],
    )  # fmt: skip
    images = torch.where(inside[:, None], uniform(-1, 0.3, count, 3, 1, 1), uniform(-1, 1, count, 3, 1, 1))
    for image, label in enumerate(labels.tolist()):
        cells = torch.tensor([[cell == "1" for cell in row] for row in DETAILS[label].split()])
        mask = cells.repeat_interleave(CELL, 0).repeat_interleave(CELL, 1)
        middle = centre[image] + uniform(-0.4, 0.4, 2) * radius[image]
        top, left = (int(place - len(mask) / 2) // STEP * STEP for place in middle)
        images[image, :, top : top + len(mask), left : left + len(mask)].masked_fill_(mask, 1.2)
    return images + 0.1 * torch.randn(images.shape, generator=random), labels


@dataclass(frozen=True)
class Variant:
    """One way of training.

    Attributes:
        share: of the patches that look again; None without global-local cross-attention.
        pairwise: whether images have partners in training.
        pairs: (labels, random numbers) -> the partners; None for a random permutation.
    """

    share: float | None = None
    pairwise: bool = False
    pairs: Callable[[Tensor, torch.Generator], Tensor] | None = None


def _among(allowed: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, torch.Generator], Tensor]:
    """A random partner among the images that may be partners; the image itself if there is none."""

    def pairs(labels: Tensor, random: torch.Generator) -> Tensor:
        fits = allowed(labels[:, None], labels[None]) & ~torch.eye(len(labels), dtype=torch.bool)
        drawn = torch.rand(fits.shape, generator=random).masked_fill(~fits, -1)
        return torch.where(fits.any(1), drawn.argmax(1), torch.arange(len(labels)))

    return pairs


VARIANTS: Mapping[str, Variant] = {
    "attention alone": Variant(),
    "global-local": Variant(SHARE),
    "pair-wise": Variant(None, True),
    "both": Variant(SHARE, True),
    "pair-wise, same class": Variant(None, True, pairs=_among(lambda one, two: one == two)),
    "pair-wise, other class": Variant(None, True, pairs=_among(lambda one, two: one != two)),
}


def _accuracy(network: Any, test: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """In percent, of all answers of evaluation together, and of the first one alone."""
    right, alone = 0, 0
    with torch.no_grad():
        for images, labels in zip(test[0].split(250), test[1].split(250), strict=True):
            features = network.forward_features(images)
            alone += int((network.forward_head(features).argmax(1) == labels).sum())
            right += int((network(images).argmax(1) == labels).sum())
    return 100 * right / len(test[1]), 100 * alone / len(test[1])


def train(variant: Variant, settings: Settings, seed: int) -> dict[str, float]:
    """Train one network on images of this seed."""
    device = settings.chosen_device()
    train_set, test = draw(settings.limit or IMAGES, seed), draw(settings.images or TESTED, 10_000)
    train_set, test = ((images.to(device), labels.to(device)) for images, labels in (train_set, test))
    torch.manual_seed(seed)
    network: Any = mereo.create_model(
        "vit_tiny", num_classes=len(DETAILS), img_size=SIDE, patch_size=PATCH, embed_dim=DIM, depth=DEPTH,
        num_heads=HEADS,
    )  # fmt: skip
    if variant != VARIANTS["attention alone"]:
        network = mereo.dual_cross_attention(network, variant.share, pairwise=variant.pairwise)
    network.to(device)
    epochs, size = settings.epochs or EPOCHS, settings.batch_size or BATCH
    steps = epochs * -(-len(train_set[1]) // size)
    schedule = OneCycleLR(torch.optim.AdamW(network.parameter_groups(0.05), RATE), RATE, total_steps=steps)
    random = torch.Generator().manual_seed(seed)
    network.train()
    began, right, losses = time.monotonic(), 0, list[float]()
    for epoch in range(epochs):
        for part in torch.randperm(len(train_set[1]), generator=random).split(size):
            images, labels = train_set[0][part], train_set[1][part]
            if variant.pairs is not None:
                network.dual.pairs = variant.pairs(labels.cpu(), random)
            scores = network(images)
            loss = F.cross_entropy(scores, labels)
            losses.append(loss.item())
            loss = loss + sum(added_losses(network, labels).values(), torch.zeros((), device=device))
            follow(schedule, loss)
            right += int((scores.argmax(1) == labels).sum()) if epoch == epochs - 1 else 0
    seconds = time.monotonic() - began
    accuracy, alone = _accuracy(network.eval(), test)
    return {
        "test %": accuracy, "first answer, test %": alone, "training %": 100 * right / len(train_set[1]),
        "seconds": seconds,
    }  # fmt: skip


def run(settings: Settings) -> dict[str, Any]:
    """A table of accuracies by the way of training."""
    runs: dict[str, list[dict[str, float]]] = {}
    for seed in range(settings.seeds):
        for name in settings.chosen(VARIANTS):
            result = train(VARIANTS[name], settings, seed)
            runs.setdefault(name, []).append(result)
            settings.say(f"seed {seed}, {name}: test {result['test %']:.1f} %, {result['seconds']:.0f} s")
    count, epochs = settings.limit or IMAGES, settings.epochs or EPOCHS
    rows = [{"training by": name, **with_spread("test %", each)} for name, each in runs.items()]
    return {
        "tables": {f"{len(DETAILS)} details, {count:,} images": rows},
        "notes": [
            f"{DEPTH} layers of {DIM}, {SIDE} x {SIDE} pixels, {epochs} epochs, AdamW at {RATE:g},"
            f" {settings.seeds} seeds. Spread: standard deviation over the seeds. The first answer is that of"
            " self-attention; without global-local cross-attention there is no other in evaluation.",
        ],
        "pictures": [],
    }
