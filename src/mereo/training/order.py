"""Randomness as a pure function of (seed, epoch, step): a resumed run repeats an uninterrupted one."""

import zlib

import numpy as np
import torch
from torch import Tensor


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
