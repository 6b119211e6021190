"""Solids: toys of five categories put together from simple shapes, as pairs of pictures from two cameras.

A stand-in for smallNORB that is rendered when it is needed: the same categories, numbers of toys, elevations, azimuths
and lightings, and the same splits. A view has one lighting, drawn once and for all, or several.
"""

import functools
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mereo.data.registry import register_dataset
from mereo.data.viewpoints import (
    AZIMUTHS,
    CATEGORIES,
    ELEVATIONS,
    LIGHTINGS,
    TEST_INSTANCES,
    TRAIN_INSTANCES,
    count_images,
    takes,
)
from mereo.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mereo.data.raw import RawDataset

SIDE, SEED = 32, 5
AT_ONCE = 6
"""Views that are drawn together; more do not fit in the cache of a processor."""


@functools.lru_cache(maxsize=10)
def _pictures(instance: int, lightings: int) -> "npt.NDArray[np.uint8]":
    """(categories, elevations, azimuths, lightings, 2, SIDE, SIDE) of one instance of every category."""
    import numpy as np

    from mereo.data.solids import make_instance, render

    generator = np.random.default_rng([SEED, instance])
    views = len(CATEGORIES), len(ELEVATIONS), len(AZIMUTHS)
    lights = generator.random((*views, LIGHTINGS)).argsort(axis=-1)[..., :lightings]
    pictures = np.empty((*lights.shape, 2, SIDE, SIDE), np.uint8)
    azimuths = np.repeat(np.array(AZIMUTHS, np.float64), lightings)
    for place, category in enumerate(CATEGORIES):
        parts = make_instance(category, instance)
        for row, elevation in enumerate(ELEVATIONS):
            chosen, target = lights[place, row].ravel(), pictures[place, row].reshape(-1, 2, SIDE, SIDE)
            for first in range(0, len(azimuths), AT_ONCE):
                some = slice(first, first + AT_ONCE)
                high = np.full(len(azimuths[some]), float(elevation))
                target[some] = render(parts, high, azimuths[some], chosen[some], SIDE)
    return pictures


def read(
    root: Path, download: bool, *, viewpoints: str = "all", familiar: bool = False, lightings: int = 1
) -> "RawDataset":
    """Rendered by one thread for each processor; nothing is read from the root."""
    import os
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    from mereo.data.published import array_split
    from mereo.data.raw import RawDataset

    views = list(itertools.product(range(len(CATEGORIES)), ELEVATIONS, AZIMUTHS, range(lightings)))
    splits = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for split, instances in (("train", TRAIN_INSTANCES), ("test", TEST_INSTANCES)):
            known = split == "train" or familiar
            chosen = [i for i, (_, up, around, _) in enumerate(views) if takes(up, around, viewpoints, known)]
            labels = [views[i][0] for i in chosen] * len(instances)
            drawn = pool.map(lambda instance: _pictures(instance, lightings), instances)
            images = [each.reshape(-1, 2, SIDE, SIDE)[chosen] for each in drawn]
            splits[split] = array_split(np.concatenate(images), labels)
    return RawDataset(splits, CATEGORIES, 2)


def configure(*, viewpoints: str = "all", familiar: bool = False, lightings: int = 1) -> Mapping[str, Any]:
    """Options: viewpoints to train on (all; azimuth or elevation for a third of them, tested on the others, or with
    familiar=true on the same), and lightings of each view, 1 to 6."""
    if not 1 <= lightings <= LIGHTINGS:
        raise UsageError(f"lightings is {lightings}; it must be between 1 and {LIGHTINGS}.")
    counts = count_images(len(CATEGORIES) * len(TRAIN_INSTANCES), lightings, viewpoints, familiar)
    chosen = functools.partial(read, viewpoints=viewpoints, familiar=familiar, lightings=lightings)
    return {"read": chosen, "splits": counts}


register_dataset(
    "solids",
    summary="toys of five categories from simple shapes, two cameras, many viewpoints; rendered when needed",
    source="ours, in the form of smallNORB: LeCun, Huang, Bottou, CVPR 2004",
    num_classes=5,
    in_chans=2,
    size=(SIDE, SIDE),
    splits={"train": 4050, "test": 4050},
    read=read,
    augment=("shift=2", "brightness=0.1", "contrast=0.8:1.2"),
    configure=configure,
)
