"""Stratified choices: classes in proportion, and the same images for the same seed."""

import numpy as np
import torch
from torch import Tensor

from mereo.data.counter import uniform


def stratified(labels: Tensor, count: int, seed: int, *, spare: int = 0) -> tuple[Tensor, Tensor]:
    """Choose `count` of the images with classes in proportion (largest remainders).

    Args:
        labels: int64 (n,).
        count: how many to choose; fewer if the classes have fewer.
        seed: of the choice.
        spare: least number of images of each class that are not chosen.

    Shapes: -> (the rest, the chosen), two sorted int64 index vectors that together are 0 .. n - 1.
    """
    kinds, sizes = np.unique(labels.numpy(), return_counts=True)
    available = np.maximum(sizes - spare, 0)
    ideal = sizes * min(count / max(len(labels), 1), 1.0)
    quota = np.minimum(np.floor(ideal).astype(np.int64), available)
    # The classes with the largest remainders make up for rounding down.
    for place in np.argsort(quota - ideal, kind="stable"):
        if quota.sum() >= count:
            break
        quota[place] = min(quota[place] + 1, available[place])
    order = np.lexsort((uniform(seed, torch.arange(len(labels)), 1)[:, 0].numpy(), labels.numpy()))
    chosen = np.zeros(len(labels), dtype=bool)
    starts = np.cumsum(sizes) - sizes
    for place in range(len(kinds)):
        chosen[order[starts[place] : starts[place] + quota[place]]] = True
    return torch.from_numpy(np.flatnonzero(~chosen)), torch.from_numpy(np.flatnonzero(chosen))


def hold_out(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Hold out a fraction of a split, at least one image; each class keeps one. -> (kept, held out)."""
    return stratified(labels, max(round(fraction * len(labels)), 1), seed, spare=1)


def hold_out_classes(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Hold out all images of a fraction of the classes, at least two; of fewer than four classes as `hold_out` does.

    -> (kept, held out)
    """
    kinds = labels.unique()
    if len(kinds) < 4:
        return hold_out(labels, fraction, seed)
    order = uniform(seed, torch.arange(len(kinds)), 1)[:, 0].argsort()
    held = torch.isin(labels, kinds[order[: max(round(fraction * len(kinds)), 2)]])
    return (~held).nonzero().flatten(), held.nonzero().flatten()
