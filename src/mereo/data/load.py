"""Loads the splits for training from the name of a data set or the path of a folder."""

import math
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import torch

from mereo.core.shapes import image_size
from mereo.data.conversion import check_channels
from mereo.data.images import Images, ImageSet
from mereo.data.layout_options import LayoutOptions
from mereo.data.raw import Progress, RawDataset, RawSplit, Read, Request
from mereo.data.registry import DatasetInfo
from mereo.data.set_aside import TEST_SEED, for_evaluation
from mereo.data.sets import find_dataset
from mereo.data.sources import dataset_info, open_dataset
from mereo.data.split import hold_out, hold_out_classes, stratified
from mereo.data.storage import Storage
from mereo.data.stream import StreamedSet, as_source
from mereo.errors import MereoError, UsageError, check_choice, check_fraction, check_positive, check_probability

_TIMED = 64
"""Images that are read together to measure the time."""


class Splits(NamedTuple):
    """Samples for training, for choosing the epoch (None if nothing is held out), and for the final test.

    `skipped` is the number of unreadable files of all splits, and `unreadable` has split, name and reason of each;
    unreadable files of a stream are known only when they are read.
    """

    train: Images
    validation: Images | None
    test: Images
    class_names: tuple[str, ...]
    in_chans: int
    skipped: int
    unreadable: tuple[tuple[str, str, str], ...] = ()


def limited(counts: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """How many samples of each split are made, at most `limit` for training."""
    return {name: min(n, limit) if name == "train" and limit is not None else n for name, n in counts.items()}


def made_splits(
    made: Mapping[str, Images], class_names: tuple[str, ...] = (), in_chans: int = 1, limit: int | None = None
) -> Splits:
    """Splits of samples that are made from a seed, the same on every machine; a limit takes the first training ones."""
    train = made["train"] if limit is None else made["train"].subset(torch.arange(min(limit, len(made["train"]))))
    return Splits(train, made["validation"], made["test"], class_names, in_chans, 0)


class _Counter:
    """Adds up the images of all splits for one progress callback."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def __call__(self, count: int) -> None:
        self.done += count
        if self.progress is not None:
            self.progress(self.done, self.total)


def load_size(img_size: tuple[int, int], crop_pct: float) -> tuple[int, int]:
    """The stored (height, width): a crop of `img_size` covers the fraction `crop_pct` of each side."""
    check_fraction(crop_pct=crop_pct)
    height, width = image_size(img_size)
    return round(height / crop_pct), round(width / crop_pct)


def _plan(
    splits: dict[str, RawSplit], validation_fraction: float, seed: int, limit: int | None, identities: bool = False
) -> dict[str, RawSplit]:
    """The division of images into splits, before any is decoded.

    Of identities, held-out images without two of one identity would find nothing: then whole identities are held out.

    The limit is applied last: images held out with it are also held out without it, and are never trained on.
    """
    plan = dict(splits)
    carved = "validation" not in plan and validation_fraction > 0
    if carved:
        labels, tested = plan["train"].labels, plan["test"].labels
        # Where test images show new identities only, held-out images do so too.
        new = len(tested) > 0 and not bool(torch.isin(tested, labels).any())
        kept, held = (hold_out_classes if new else hold_out)(labels, validation_fraction, seed)
        if identities and len(held) and int(labels[held].bincount().max()) < 2:
            kept, held = hold_out_classes(labels, validation_fraction, seed)
        if not len(held):
            raise UsageError(
                f"validation_fraction is {validation_fraction}, but no class has two training images; it must be 0."
            )
        plan |= {"train": plan["train"].take(kept), "validation": plan["train"].take(held)}
    if limit is not None and limit < len(plan["train"]):
        whole = len(plan["train"])
        for name in ("train", "validation") if carved else ("train",):
            _, chosen = stratified(plan[name].labels, -(-len(plan[name]) * limit // whole), seed)
            plan[name] = plan[name].take(chosen)
    return plan


def load_splits(
    data: str,
    *,
    root: str | Path | None = None,
    img_size: int | tuple[int, int] | None = None,
    length: int | None = None,
    in_chans: int | None = None,
    crop_pct: float = 1.0,
    validation_fraction: float = 0.1,
    seed: int = 0,
    strict: bool = False,
    limit: int | None = None,
    test_limit: int | None = None,
    pairs_per_image: int = 1,
    memory_budget: int | None = None,
    cache_dir: str | Path | None = None,
    download: bool = True,
    stream: bool | None = None,
    progress: Progress | None = None,
    info: DatasetInfo | None = None,
    unseen: bool = False,
    options: LayoutOptions | None = None,
) -> Splits:
    """Read a dataset into splits: images stored at round(img_size / crop_pct), or windows of a text.

    Args:
        data: a name of `list_datasets()`, or the path of an image folder, of a .zip archive of one, or of a .csv table
            with the columns path, label and maybe split; or of a file or folder of text.
        root: folder of named data sets; when None, the environment variable MEREO_DATA or else the folder data.
        img_size: height and width of the images that the model takes, or one number for both; None for other data.
        length: number of tokens or points that the model takes, None for images: a path is then one of text.
        in_chans: channels of the images, 1 or 3; the channels of the data set when None.
        crop_pct: side of the model's image over side of the stored one; below 1 batches are cropped.
        validation_fraction: of the training images, held out with classes in proportion; of the training classes where
            test images are of other classes, and of identities of which no two images would be held out. 0 holds out
            none. Data with both val and test is not divided further.
        seed: of the choice of held-out images and of the limit. Test images and their pairs do not depend on it.
        strict: whether a file that cannot be read is an error, rather than skipped with a warning.
        limit: largest number of training images, with classes in proportion; held-out images are reduced in proportion,
            test images are not.
        test_limit: largest number of test images, with classes in proportion.
        pairs_per_image: for data sets made of stored images, such as multimnist, how many test samples start from each.
        memory_budget: bytes of decoded images kept in memory; half of the available memory when None. The rest is
            memory-mapped.
        cache_dir: folder for memory-mapped images.
        download: whether missing files of a named data set may be downloaded.
        stream: whether images are decoded when they are used rather than in advance, so that they need not fit in
            memory; when None, this is done for tar files, tables and the Hugging Face hub, but not for folders.
        progress: called with (images done, images in total).
        info: of the same data, from `dataset_info`; then a folder is not scanned again.
        unseen: whether other splits may have classes that the training images do not have, as identities do.
        options: what is stated of the layout of a path, such as where the classes are; not needed with `info`.
    """
    wanted = Wanted(
        data, root, img_size, length, in_chans, crop_pct, validation_fraction, seed, strict, limit, download,
        pairs_per_image, Storage(memory_budget, cache_dir), progress, stream, info, unseen, options, test_limit,
    )  # fmt: skip
    if (others := _other_splits(wanted)) is not None:
        return others
    dataset, channels, images, unreadable = _read(wanted)
    return Splits(
        images["train"], images.get("validation"), images["test"], dataset.class_names, channels,
        len(unreadable), unreadable,
    )  # fmt: skip


def seconds_to_read(info: DatasetInfo, size: tuple[int, int], channels: int, limit: float) -> float:
    """Measured seconds of reading one of the training images; 0 for data in memory and for streams.

    Args:
        info: of the data.
        size: height and width at which the images are stored.
        channels: 1 or 3.
        limit: approximate seconds that are measured.
    """
    if info.layout is None:
        return 0.0
    split = info.layout.splits["train"]
    # Parts of the images, evenly spread; the least time counts, because longer ones include the work of other programs.
    every, fastest, end = -(-len(split) // _TIMED), math.inf, monotonic() + limit
    for first in range(every):
        sample = split.take(torch.arange(first, len(split), every))
        began = monotonic()
        with warnings.catch_warnings(), suppress(MereoError):  # what cannot be read is reported when all is read
            warnings.simplefilter("ignore")
            sample.read(Request(size, channels, Storage()))
        fastest = min(fastest, (monotonic() - began) / len(sample))
        if monotonic() > end:
            break
    return fastest


def load_split(
    data: str,
    split: str = "test",
    *,
    root: str | Path | None = None,
    img_size: int | tuple[int, int] | None = None,
    length: int | None = None,
    in_chans: int | None = None,
    crop_pct: float = 1.0,
    validation_fraction: float = 0.1,
    seed: int = 0,
    strict: bool = False,
    limit: int | None = None,
    download: bool = True,
    unseen: bool = False,
    info: DatasetInfo | None = None,
    options: LayoutOptions | None = None,
) -> Images:
    """One of the splits of `load_splits`: "train", "validation" or "test"; the others are not decoded.

    "whole" is for evaluating a network that was trained on other images: the test images of a path, else its
    validation images, or all images if it has no splits; for a named data set, the test images. With `unseen`, test
    images at a path may be of classes that its training images do not have. `info`, `options`: as in `load_splits`.
    """
    check_choice("split", split, ("train", "validation", "test", "whole"))
    wanted = Wanted(
        data,
        root,
        img_size,
        length,
        in_chans,
        crop_pct,
        validation_fraction,
        seed,
        strict,
        limit,
        download,
        info=info,
        unseen=unseen,
        options=options,
    )
    if (others := _other_splits(wanted)) is not None:
        found: Images | None = getattr(others, "test" if split == "whole" else split)
        if found is None:
            raise UsageError(f"split is {split!r}, and {data} has none; use test.")
        return found
    return _read(wanted, only=split)[2][split]


class Wanted(NamedTuple):
    """How splits are wanted: the arguments of `load_splits`."""

    data: str
    root: str | Path | None
    img_size: int | tuple[int, int] | None
    length: int | None
    in_chans: int | None
    crop_pct: float
    validation_fraction: float
    seed: int
    strict: bool
    limit: int | None
    download: bool
    pairs_per_image: int = 1
    storage: Storage | None = None
    progress: Progress | None = None
    stream: bool | None = None
    info: DatasetInfo | None = None
    unseen: bool = False
    options: LayoutOptions | None = None
    test_limit: int | None = None


def _other_splits(wanted: Wanted) -> Splits | None:
    """The splits of data that is no set of images; None for images."""
    info = find_dataset(wanted.data) if wanted.info is None else wanted.info
    if info is None and wanted.length is not None:
        info = dataset_info(wanted.data, wanted.root, inputs="tokens")
    if info is None or info.load is None:
        if info is not None and wanted.length is not None and wanted.img_size is None:
            info.check_serves("tokens")
        return None
    if wanted.length is None:
        info.check_serves("images")
        raise UsageError(f"length is None; {wanted.data} is served in parts of a length, so give one.")
    check_positive(length=wanted.length)
    if wanted.limit is not None:
        check_positive(limit=wanted.limit)
    return info.load(wanted)


def _stored_size(wanted: Wanted, info: DatasetInfo | None) -> tuple[int, int]:
    """The (height, width) at which images are stored: before the crop, and without the padding of the data set."""
    side = wanted.img_size
    if side is None:
        raise UsageError(f"img_size is None, and {wanted.data} is images; give their height and width.")
    size = load_size(image_size(side if isinstance(side, int) else (side[0], side[1])), wanted.crop_pct)
    if info is None or not info.margin:
        return size
    size = size[0] - 2 * info.margin, size[1] - 2 * info.margin
    if min(size) < 1:
        raise UsageError(f"img_size is {side}; for {wanted.data} it must be above {2 * info.margin}, the padding.")
    return size


def _chosen_splits(dataset: RawDataset, wanted: Wanted, only: str | None) -> dict[str, RawSplit]:
    """All splits, or only one; "whole" is for evaluating a trained network."""
    if only == "whole":
        return {only: for_evaluation(dataset.splits)}
    plan = _plan(dataset.splits, wanted.validation_fraction, wanted.seed, wanted.limit, wanted.unseen)
    if wanted.test_limit is not None and wanted.test_limit < len(plan["test"]):
        _, chosen = stratified(plan["test"].labels, wanted.test_limit, TEST_SEED)
        plan["test"] = plan["test"].take(chosen)
    if only is None:
        return plan
    if only not in plan:
        raise UsageError(f"{wanted.data} has no {only} images; it has {', '.join(sorted(plan))}.")
    return {only: plan[only]}


def _streamed(
    plan: Mapping[str, RawSplit], names: tuple[str, ...], size: tuple[int, int], channels: int, *, strict: bool
) -> dict[str, Images] | None:
    """Splits whose images are decoded while they are used; None if a split cannot be streamed."""
    sources = {name: as_source(split) for name, split in plan.items()}
    if any(source is None for source in sources.values()):
        return None
    return {
        name: StreamedSet(source, names, size, channels, strict=strict)
        for name, source in sources.items()
        if source is not None
    }


def _read(
    wanted: Wanted, only: str | None = None
) -> tuple[RawDataset, int, dict[str, Images], tuple[tuple[str, str, str], ...]]:
    """The dataset, its channels, the images of all splits or of one, and which could not be read."""
    check_probability(validation_fraction=wanted.validation_fraction)
    check_positive(**{k: v for k in ("limit", "test_limit") if (v := getattr(wanted, k)) is not None})
    info = find_dataset(wanted.data)
    size = _stored_size(wanted, info)
    dataset = open_dataset(
        wanted.data,
        wanted.root,
        download=wanted.download,
        info=wanted.info,
        evaluation=only == "whole",
        unseen=wanted.unseen,
        options=wanted.options,
    )
    channels = dataset.in_chans if wanted.in_chans is None else wanted.in_chans
    check_channels(dataset.in_chans, channels)
    plan = _chosen_splits(dataset, wanted, only)
    if wanted.stream or (wanted.stream is None and getattr(plan[only or "train"], "streamed", False)):
        streamed = _streamed(plan, dataset.class_names, size, channels, strict=wanted.strict)
        if streamed is not None:
            return dataset, channels, streamed, ()
    counter = _Counter(wanted.progress, sum(len(split) for split in plan.values()))
    request = Request(size, channels, wanted.storage or Storage(), wanted.strict, counter)
    reads: dict[str, Read] = {}
    unreadable: list[tuple[str, str, str]] = []
    for name, split in plan.items():
        request.unreadable = []
        reads[name] = split.read(request)
        unreadable += [(name, file, reason) for file, reason in request.unreadable]
    if "train" in plan:
        _check_classes(plan["train"], reads["train"], dataset.class_names)
    stored = {
        name: ImageSet(read.images, read.labels, dataset.class_names, dict(read.fields)) for name, read in reads.items()
    }
    images: dict[str, Images] = dict(stored)
    if info is not None and info.wrap is not None:
        for name, part in stored.items():
            images[name] = info.wrap(part, wanted.pairs_per_image if name == "test" else 1)
    return dataset, channels, images, tuple(unreadable)


def _check_classes(planned: RawSplit, read: Read, class_names: tuple[str, ...]) -> None:
    """Raise an error for a class without any readable training image."""
    lost = sorted(set(torch.unique(planned.labels).tolist()) - set(torch.unique(read.labels).tolist()))
    if lost:
        raise MereoError(f"none of the training images of class {class_names[lost[0]]!r} could be read; repair them.")
