"""The images that a run was trained on: a fingerprint of each, kept in the run folder.

With them an evaluation on other data finds the images that the network has already seen, by their content and not by
their names. Images are equal if all their pixels are, at the size of the network.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mereo.data import Images, Splits, TokenWindows
from mereo.data.files import sniff_sizes
from mereo.data.image_statistics import SAMPLED, StatisticsRanges, ranges_of
from mereo.errors import MereoError, UsageError
from mereo.models.weights import read_tensors, save_tensors
from mereo.training.plan import Plan
from mereo.training.run_folder import RunFolder

MOST_VALUES = 2**28
"""Pixels of a split of which fingerprints are made, all channels counted; a larger split has none."""
_CHUNK = 512


def _batches(images: Images) -> Iterator[Tensor]:
    for part in torch.arange(len(images)).split(_CHUNK):
        try:
            yield images.batch(part, device="cpu").images
        except MereoError:  # images of a stream that cannot be read; they are left out
            continue


def fingerprints(images: Images) -> Tensor:
    """64 bits of each image, equal for equal pixels: int64 (images,)."""
    prints = [
        np.frombuffer(hashlib.blake2b(pixels.tobytes(), digest_size=8).digest(), dtype=np.int64)
        for batch in _batches(images)
        for pixels in (batch * 255).round().to(torch.uint8).numpy()
    ]
    return torch.from_numpy(np.concatenate(prints)) if prints else torch.zeros(0, dtype=torch.int64)


def _comparable(images: Images | None) -> bool:
    fits = images is not None and not isinstance(images, TokenWindows)
    return fits and images is not None and len(images) * int(np.prod(images.image_shape)) <= MOST_VALUES


def keep_seen(folder: RunFolder, splits: Splits) -> None:
    """Write the fingerprints of the images to train on and to choose the epoch by."""
    parts = {"train": splits.train, "validation": splits.validation}
    known = {name: fingerprints(images) for name, images in parts.items() if images is not None and _comparable(images)}
    if known:
        shape = list(splits.train.image_shape)
        save_tensors(folder.seen, known, {"image_shape": shape})


def seen_before(source: Path, images: Images) -> Tensor:
    """Which images a run was trained on, or chose its epoch by: bool (images,).

    Args:
        source: the run folder, or a file of weights in it. Other weights have seen nothing that is known.
        images: at the size of its network.
    """
    path = RunFolder(source if source.is_dir() else source.parent.parent).seen
    none = torch.zeros(len(images), dtype=torch.bool)
    if not path.is_file() or not _comparable(images):
        return none
    try:
        known = torch.cat([tensor.flatten() for tensor in read_tensors(path).values()])
    except (UsageError, MereoError):
        return none
    own = fingerprints(images)
    return torch.isin(own, known) if len(own) == len(images) else none


def training_statistics(plan: Plan, train: Images) -> StatisticsRanges:
    """The ranges of image statistics over the training images."""
    if isinstance(train, TokenWindows) or not len(train):
        return StatisticsRanges()
    places = torch.arange(0, len(train), max(len(train) // SAMPLED, 1))
    try:
        images = train.batch(places, device="cpu").images
    except MereoError:  # an image of a stream that cannot be read
        return StatisticsRanges()
    info = plan.info
    sizes = [] if info.size is None else [info.size]
    if info.layout is not None:
        split = info.layout[0]["train"]
        sizes = sniff_sizes(split.tree, split.files)
    return ranges_of(images, sizes, colour=info.in_chans == images.shape[1])
