"""Splits of images that are made from a seed, the same on every machine."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mereo.data.raw import ArraySplit, RawDataset, RawSplit

Pixels = npt.NDArray[np.uint8]


def made_dataset(
    counts: Mapping[str, int],
    seed: int,
    make: Callable[[np.random.Generator, int], tuple[Pixels, dict[str, Tensor]]],
    names: tuple[str, ...],
) -> RawDataset:
    """A set without classes.

    Args:
        counts: images of each split.
        seed: of the set; each split has a generator of its own.
        make: from a generator and a number of images to these, uint8 (n, c, h, w), and fields of `mereo.data.Batch`.
        names: of what the fields hold.
    """
    splits = dict[str, RawSplit]()
    for number, (split, count) in enumerate(counts.items()):
        images, fields = make(np.random.default_rng([seed, number]), count)
        splits[split] = ArraySplit(torch.from_numpy(images), torch.zeros(count, dtype=torch.int64), fields=fields)
    return RawDataset(splits, names, images.shape[1])


def made_masks(
    root: Path,
    download: bool,
    *,
    counts: Mapping[str, int],
    seed: int,
    sample: Callable[[np.random.Generator], tuple[Pixels, Pixels]],
    names: tuple[str, ...],
) -> RawDataset:
    """Images with masks of named classes; `sample` makes an image (c, h, w) and its mask (h, w)."""

    def make(generator: np.random.Generator, count: int) -> tuple[Pixels, dict[str, Any]]:
        images, masks = zip(*(sample(generator) for _ in range(count)), strict=True)
        return np.stack(images), {"masks": torch.from_numpy(np.stack(masks))}

    return made_dataset(counts, seed, make, names)
