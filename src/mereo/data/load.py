"""From a dataset's name or a folder's path to the splits that training needs."""

from pathlib import Path
from typing import NamedTuple

import torch

from mereo.core.shapes import image_size
from mereo.data.conversion import check_channels
from mereo.data.images import Images, ImageSet
from mereo.data.multimnist import PAD, OverlaidPairs
from mereo.data.raw import Progress, RawSplit, Read, Request
from mereo.data.sources import open_dataset
from mereo.data.split import hold_out, stratified
from mereo.data.storage import Storage
from mereo.errors import MereoError, UsageError, check_positive, check_probability

OVERLAID = "multimnist"
PAIR_SEED = 0


class Splits(NamedTuple):
    """Images for training, for choosing (None when nothing is held out), and for the final test.

    `skipped` is how many files could not be read, all splits together.
    """

    train: Images
    validation: Images | None
    test: Images
    class_names: tuple[str, ...]
    in_chans: int
    skipped: int


class _Counter:
    """Adds up the images of all splits for one progress callback."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def __call__(self, count: int) -> None:
        self.done += count
        if self.progress is not None:
            self.progress(self.done, self.total)


def load_size(img_size: tuple[int, int], crop_pct: float) -> tuple[int, int]:
    """The stored (height, width) of which a crop of `img_size` is the share `crop_pct` of each side."""
    if not 0 < crop_pct <= 1:
        raise UsageError(f"crop_pct is {crop_pct}; it must be above 0 and at most 1.")
    height, width = image_size(img_size)
    return round(height / crop_pct), round(width / crop_pct)


def _plan(splits: dict[str, RawSplit], validation_fraction: float, seed: int, limit: int | None) -> dict[str, RawSplit]:
    """Which images go where, before any is decoded. The limit comes last, so that it does not change validation."""
    plan = dict(splits)
    if "validation" not in plan and validation_fraction:
        kept, held = hold_out(plan["train"].labels, validation_fraction, seed)
        if not len(held):
            raise UsageError(
                f"validation_fraction is {validation_fraction}, but no class has two training images; it must be 0."
            )
        plan |= {"train": plan["train"].take(kept), "validation": plan["train"].take(held)}
    if limit is not None and limit < len(plan["train"]):
        _, chosen = stratified(plan["train"].labels, limit, seed)
        plan["train"] = plan["train"].take(chosen)
    return plan


def load_splits(
    data: str,
    *,
    root: str | Path | None = None,
    img_size: int | tuple[int, int],
    in_chans: int | None = None,
    crop_pct: float = 1.0,
    validation_fraction: float = 0.1,
    seed: int = 0,
    strict: bool = False,
    limit: int | None = None,
    pairs_per_image: int = 1,
    memory_budget: int | None = None,
    cache_dir: str | Path | None = None,
    download: bool = True,
    progress: Progress | None = None,
) -> Splits:
    """Read a dataset into splits whose images are stored at round(img_size / crop_pct).

    Args:
        data: a name of `list_datasets()`, or the path of an image folder or of a .zip archive of one.
        root: where named datasets lie; the environment variable MEREO_DATA, else the folder data, when None.
        img_size: height and width that the model takes, or one number for both.
        in_chans: colours of the images, 1 or 3; those of the dataset when None.
        crop_pct: side of the model's image over side of the stored one; below 1 batches are cropped.
        validation_fraction: of the training images, held out stratified; 0 holds out none. A folder with both val
            and test has its own.
        seed: of the held-out choice and of the limit. Test images and their pairs do not depend on it.
        strict: whether a file that cannot be read is an error, rather than skipped with a warning.
        limit: at most so many training images, stratified.
        pairs_per_image: for multimnist, how many test pairs start from each test digit.
        memory_budget: bytes of decoded images that may lie in memory; half of what is available when None. What does
            not fit is memory-mapped.
        cache_dir: folder for memory-mapped images.
        download: whether missing files of a named dataset may be fetched.
        progress: called with (images done, images in all).
    """
    size = load_size(image_size(img_size if isinstance(img_size, int) else (img_size[0], img_size[1])), crop_pct)
    check_probability(validation_fraction=validation_fraction)
    if limit is not None:
        check_positive(limit=limit)
    if data == OVERLAID:
        size = size[0] - 2 * PAD, size[1] - 2 * PAD
        if min(size) < 1:
            raise UsageError(f"img_size is {img_size}; for {OVERLAID} it must be above {2 * PAD}, the padding.")
    dataset = open_dataset(data, root, download=download)
    channels = dataset.in_chans if in_chans is None else in_chans
    check_channels(dataset.in_chans, channels)
    plan = _plan(dataset.splits, validation_fraction, seed, limit)

    counter = _Counter(progress, sum(len(split) for split in plan.values()))
    request = Request(size, channels, Storage(memory_budget, cache_dir), strict, counter)
    reads = {name: split.read(request) for name, split in plan.items()}
    _check_classes(plan["train"], reads["train"], dataset.class_names)
    stored = {name: ImageSet(read.images, read.labels, dataset.class_names) for name, read in reads.items()}
    images: dict[str, Images] = dict(stored)
    if data == OVERLAID:
        images |= {name: OverlaidPairs(part, seed=PAIR_SEED) for name, part in stored.items()}
        images["test"] = OverlaidPairs(stored["test"], pairs_per_image=pairs_per_image, seed=PAIR_SEED)
    skipped = sum(read.skipped for read in reads.values())
    return Splits(images["train"], images.get("validation"), images["test"], dataset.class_names, channels, skipped)


def _check_classes(planned: RawSplit, read: Read, class_names: tuple[str, ...]) -> None:
    """A class of which no file could be read would be trained on nothing."""
    lost = sorted(set(torch.unique(planned.labels).tolist()) - set(torch.unique(read.labels).tolist()))
    if lost:
        raise MereoError(f"none of the training images of class {class_names[lost[0]]!r} could be read; repair them.")
