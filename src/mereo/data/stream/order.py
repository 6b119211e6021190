"""The order in which an epoch visits images stored many to a file."""

import torch
from torch import Tensor

ORDERS = ("random", "shards")


def window_order(groups: Tensor, window: int, generator: torch.Generator) -> Tensor:
    """Files in random order, with images shuffled within a window: a pure function of the generator's seed.

    With positions p in the concatenation of the shuffled files and u uniform in [0, 1), images are visited by
    ascending p + window u, so that each moves by less than `window` places and only the files in the window are read.

    Args:
        groups: the file of each image.
        window: number of images within which images are shuffled.
        generator: on the CPU.

    Shapes: groups int64 (n,) -> int64 (n,), a permutation of 0 .. n - 1.
    """
    kinds, file = groups.unique(return_inverse=True)
    place = torch.randperm(len(kinds), generator=generator)[file]
    in_files = place.argsort(stable=True)
    noise = torch.rand(len(groups), generator=generator, dtype=torch.float64)
    return in_files[(torch.arange(len(groups)) + window * noise).argsort(stable=True)]
