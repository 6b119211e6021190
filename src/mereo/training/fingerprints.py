"""The images that a run was trained on: a fingerprint of each, kept in the run folder.

With them an evaluation or a prediction recognises the images that the network was trained on, by their content and
not by their names. Images are equal if all their pixels are, in the part and at the size that the network takes.
"""

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mereo.data import Images, ImageSet, Splits
from mereo.data.files import sniff_sizes
from mereo.data.image_statistics import SAMPLED, StatisticsRanges, ranges_of
from mereo.data.images import crop_corners
from mereo.data.stream import StreamedSet
from mereo.errors import MereoError, UsageError
from mereo.models.weights import read_tensors, save_tensors
from mereo.training.plan import Plan
from mereo.training.run_folder import RunFolder

MOST_DECODED, MOST_STORED = 2**28, 2**33
"""Pixels of a split that get fingerprints, all channels counted: of a stream, whose images are decoded for it,
and of stored images. A larger split has none."""
_CHUNK = 512


def _bytes(images: Tensor) -> Tensor:
    """Images in [0, 1] as the bytes that they were made of."""
    return (images * 255).round().to(torch.uint8)


def _pixels(images: Images) -> Iterator[tuple[Tensor, Tensor]]:
    """Stored pixels of the images, uint8 (part, channels, height, width), and whether each could be read."""
    if isinstance(images, StreamedSet):
        images = images.decoded_fully()
    for part in torch.arange(len(images)).split(_CHUNK):
        if isinstance(images, StreamedSet):
            with warnings.catch_warnings():  # the training or evaluation itself warns of unreadable images
                warnings.simplefilter("ignore")
                yield images.decode(part)
            continue
        if isinstance(images, ImageSet):
            pixels = images.images[part].cpu()
        else:
            pixels = _bytes(images.batch(part, device="cpu").images)
        yield pixels, torch.ones(len(part), dtype=torch.bool)


def _marks(pixels: Tensor) -> Tensor:
    """64 bits of each image, equal for equal pixels. Shapes: uint8 (n, ...) -> int64 (n,)."""
    digests = b"".join(hashlib.blake2b(image.tobytes(), digest_size=8).digest() for image in pixels.numpy())
    return torch.from_numpy(np.frombuffer(digests, dtype=np.int64).copy())


def fingerprints(images: Images, crop: tuple[int, int]) -> Tensor:
    """64 bits of each image, equal for equal pixels; 0 for one that cannot be read.

    Args:
        images: stored at a size of at least `crop`.
        crop: height and width of the centre that the network takes.

    Shapes: -> int64 (images,).
    """
    corners = crop_corners(1, images.image_shape, crop, None)
    top, left = (0, 0) if corners is None else corners[0].tolist()
    marks = [torch.zeros(0, dtype=torch.int64)]
    for pixels, readable in _pixels(images):
        part = pixels[..., top : top + crop[0], left : left + crop[1]].contiguous()
        marks.append(_marks(part) * readable)
    return torch.cat(marks)


def _comparable(images: Images | None) -> bool:
    if images is None or images.serves != "images":
        return False
    most = MOST_DECODED if isinstance(images, StreamedSet) else MOST_STORED
    return len(images) * math.prod(images.image_shape) <= most


def keep_fingerprints(folder: RunFolder, splits: Splits, crop: tuple[int, int] | None) -> None:
    """Write the fingerprints of the images to train on and to choose the epoch by, as the network takes them."""
    if crop is None:
        return
    parts = {"train": splits.train, "validation": splits.validation}
    known = {
        name: fingerprints(images, crop) for name, images in parts.items() if images is not None and _comparable(images)
    }
    if known:
        save_tensors(folder.fingerprints, known, {"image_shape": [splits.train.image_shape[0], *crop]})


def _known(source: Path, parts: tuple[str, ...]) -> Tensor:
    """The fingerprints that a run has kept; none for other weights."""
    path = RunFolder(source if source.is_dir() else source.parent.parent).fingerprints
    none = torch.zeros(0, dtype=torch.int64)
    if not path.is_file():
        return none
    try:
        kept = read_tensors(path)
    except (UsageError, MereoError):
        return none
    known = torch.cat([none, *(kept[name].flatten() for name in parts if name in kept)])
    return known[known != 0]


def recorded_images(source: Path, images: Images, crop: tuple[int, int]) -> Tensor:
    """Which images a run was trained on, or chose its epoch by: bool (images,).

    Args:
        source: the run folder, or a file of weights in it. Of other weights no image is known.
        images: stored for its network.
        crop: height and width that the network takes.
    """
    known = _known(source, ("train", "validation"))
    if not len(known) or not _comparable(images):
        return torch.zeros(len(images), dtype=torch.bool)
    return torch.isin(fingerprints(images, crop), known)


def trained_on(source: Path) -> Callable[[Tensor], Tensor]:
    """A function that says which images a run was trained on, from images as its network takes them.

    Held-out images, on which the epoch was chosen, are not among them.

    Args:
        source: the run folder, or a file of weights in it. Of other weights no image is known.

    Shapes: of the function: (n, channels, height, width) in [0, 1] -> bool (n,).
    """
    known = _known(source, ("train",))

    def seen(images: Tensor) -> Tensor:
        if not len(known):
            return torch.zeros(len(images), dtype=torch.bool)
        return torch.isin(_marks(_bytes(images.cpu()).contiguous()), known)

    return seen


def training_statistics(plan: Plan, train: Images) -> StatisticsRanges:
    """The ranges of image statistics over the training images."""
    if train.serves != "images" or not len(train):
        return StatisticsRanges()
    places = torch.arange(0, len(train), max(len(train) // SAMPLED, 1))
    try:
        images = train.batch(places, device="cpu").images
    except MereoError:  # an image of a stream that cannot be read
        return StatisticsRanges()
    info = plan.info
    sizes = [] if info.size is None else [info.size]
    if info.layout is not None:
        split = info.layout.splits["train"]
        sizes = sniff_sizes(split)
    return ranges_of(images, sizes, colour=info.in_chans == images.shape[1])
