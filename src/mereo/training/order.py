"""Randomness as a pure function of (seed, epoch, step): a resumed run repeats an uninterrupted one."""

import zlib

import numpy as np
import torch
from torch import Tensor

from mereo.data import Images
from mereo.errors import UsageError


def derived_seed(seed: int, purpose: str, *counters: int) -> int:
    """A seed for one purpose at one moment; different purposes and moments give independent streams."""
    sequence = np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *counters])
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def generator(seed: int, purpose: str, *counters: int) -> torch.Generator:
    """A CPU generator started from `derived_seed`."""
    return torch.Generator().manual_seed(derived_seed(seed, purpose, *counters))


def epoch_order(seed: int, epoch: int, count: int) -> Tensor:
    """The order in which one epoch visits the images: a permutation of 0 .. count - 1."""
    return torch.randperm(count, generator=generator(seed, "order", epoch))


def balanced_order(seed: int, epoch: int, labels: Tensor) -> Tensor:
    """An epoch as long as the data set, in which every class occurs equally often, to within one.

    Every class is repeated, with a new permutation each time, so that the frequencies of images of one class differ by
    at most one.

    Shapes: labels int64 (images,) -> int64 (images,).
    """
    count, random = len(labels), generator(seed, "order", epoch)
    members = [(labels == label).nonzero().flatten() for label in labels.unique()]
    share = -(-count // len(members))
    drawn = []
    for images in members:
        rounds = -(-share // len(images))
        repeated = torch.cat([images[torch.randperm(len(images), generator=random)] for _ in range(rounds)])
        drawn.append(repeated[:share])
    # One image of each class in turn; the last round may have only some of the classes.
    in_turn = torch.stack(drawn, dim=1).flatten()[:count]
    return in_turn[torch.randperm(count, generator=random)]


def sample_epoch(sampler: str, seed: int, epoch: int, images: Images) -> Tensor:
    """The order of one epoch by the name of a sampler, "shuffle" or "balanced": int64 (images,)."""
    if sampler == "shuffle":
        return images.order(generator(seed, "order", epoch))
    if images.labels_per_image != 1 or not images.class_names:
        raise UsageError(f"sampler is {sampler!r}, which needs data of one label per image; use 'shuffle'.")
    return balanced_order(seed, epoch, images.strata)
