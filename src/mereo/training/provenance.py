"""The data and environment of a run, kept in its checkpoint, so that a resumed run detects changes.

The data are described by class names, labels and sums of pixels with random signs,

    s[class, k] = sum over images i of the class, sum over pixels p of  a[i, k] b[p, k] x[i, p],   a, b in {-1, 1}

which change if any image is replaced or moved, by far more than rounding on another processor does.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mereo.data import Batch, Images, Splits
from mereo.errors import MereoError, UsageError

SIGNATURES = 8
"""Sums for each class."""

MOST_SUMS = 256
"""With more classes than this, several classes share their sums."""

MOST_VALUES = 2**28
"""Pixels of a split that are summed, all channels counted; of a larger split, images spread evenly over it."""

ROUNDING = 0.25
"""Sums may differ by this times the root of their number of pixels: about one value in a hundred rounded otherwise."""

_CHUNK = 2**22


def describe_data(splits: Splits) -> dict[str, Any]:
    """Class names and each split's labels and pixels, as plain values."""
    parts = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    described = {name: _describe(images) for name, images in parts.items() if images is not None}
    return {"class_names": list(splits.class_names), "splits": described}


def _describe(images: Images) -> dict[str, Any]:
    if (own := images.describe()) is not None:
        return own
    count, size, classes = len(images), math.prod(images.image_shape), len(images.class_names)
    indices = torch.arange(0, count, max(-(-count * size // MOST_VALUES), 1))
    sums = torch.zeros(min(classes, MOST_SUMS), SIGNATURES, dtype=torch.float64)
    counts, digest = torch.zeros(classes, dtype=torch.int64), hashlib.sha256()
    # Whole numbers that the type holds exactly, so that sums are the same in any order.
    exact = torch.float32 if 255 * size < 2**24 else torch.float64
    of_images, of_pixels = _signs(len(indices), 0), _signs(size, 1).to(exact)
    for places, batch in _readable(images, indices, max(_CHUNK // size, 1)):
        labels = batch.labels.reshape(len(places), -1)
        for field in (labels, batch.multi_hot, batch.values, batch.attributes):
            digest.update(b"" if field is None else field.cpu().numpy().tobytes())
        first = labels[:, 0]
        counts += torch.bincount(first, minlength=classes)
        values = (batch.images * 255).round().flatten(1).to(exact) @ of_pixels
        sums.index_add_(0, first % len(sums), values.double() * of_images[places])
    return {
        "count": count,
        "size": list(images.image_shape),
        "classes": counts.tolist(),
        "labels": digest.hexdigest(),
        "sums": sums.long().tolist(),
    }


def _readable(images: Images, indices: Tensor, chunk: int) -> Iterator[tuple[Tensor, Batch]]:
    """Batches of all images, with their places in `indices`; without images of a stream that cannot be read."""
    for places in torch.arange(len(indices)).split(chunk):
        try:
            batch = images.batch(indices[places], device="cpu")
        except MereoError:  # not one of them
            batch = None
        if batch is not None and len(batch.images) == len(places):
            yield places, batch
        elif len(places) > 1:  # which of them is not known
            yield from ((places[place], one) for place, one in _readable(images, indices[places], 1))


def _signs(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, (count, SIGNATURES), generator=generator, dtype=torch.int8) * 2 - 1


def describe_environment(device: torch.device, processes: int, sync_batchnorm: bool) -> dict[str, Any]:
    """Whatever affects the exact bits of a result besides configuration and data."""
    return {
        "processes": processes,
        "threads": torch.get_num_threads(),
        "device": device.type,
        "torch": str(torch.__version__),
        "Pillow": version("pillow"),
        "sync_batchnorm": sync_batchnorm and processes > 1,
    }


def compare_with_saved(folder: Path, saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Warnings about what changed since the checkpoint of a run folder was written.

    Args:
        saved, now: {"data": `describe_data`, "environment": `describe_environment`}; checkpoints of older versions
            have neither.

    Raises UsageError for data that changed.
    """
    if "data" not in saved or "environment" not in saved:
        return ["warning: this checkpoint does not record its data, so changes since then cannot be detected"]
    try:
        environment = saved["environment"]
        changes, rounding = data_changes(saved["data"], now["data"])
        differing = {
            name: environment[name] for name, value in now["environment"].items() if environment[name] != value
        }
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UsageError(
            f"the record of the data in the checkpoint of {folder} is invalid; remove it to start again."
        ) from error
    changed = ", ".join(f"{name} {was!s:.40} (now {now['environment'][name]})" for name, was in differing.items())
    if changes:
        more = f"; and {len(changes) - 4} more" if len(changes) > 4 else ""
        reader = f" The run started with {changed}." if {"torch", "Pillow"} & differing.keys() else ""
        raise UsageError(
            f"the data changed since {folder} was started: {'; '.join(changes[:4])}{more}.{reader} Restore them, or"
            f" start a new run from its weights: without --resume, with --weights {folder} and another --name."
        )
    warnings = []
    if rounding:
        warnings.append("warning: the images differ by rounding only; results differ in their last digits")
    differing.pop("Pillow", None)
    if differing:
        warnings.append(f"warning: the run started with {changed}; results differ from an uninterrupted run's")
    return warnings


def data_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], bool]:
    """The changes in words, and whether pixels differ by no more than rounding."""
    names, changes, rounding = now["class_names"], [], False
    if saved["class_names"] != names:
        gone = [name for name in saved["class_names"] if name not in names]
        new = [name for name in names if name not in saved["class_names"]]
        parts = [f"{_listed(gone)} gone" if gone else "", f"{_listed(new)} new" if new else ""]
        changes.append("classes: " + (", ".join(filter(None, parts)) or "in another order"))
    for split in sorted(saved["splits"].keys() | now["splits"].keys()):
        was, is_now = saved["splits"].get(split), now["splits"].get(split)
        if was is None or is_now is None:
            changes.append(f"{split}: {'new' if was is None else 'gone'}")
            continue
        if was["count"] != is_now["count"]:
            changes.append(f"{split}: {was['count']} images, now {is_now['count']}")
        if was["size"] != is_now["size"]:
            changes.append(f"{split}: images of {was['size']}, now {is_now['size']}")
        if changes:
            continue
        counted = names if is_now["classes"] else []  # data that state their own identity count no classes
        for name, before, after in zip(counted, was["classes"], is_now["classes"], strict=True):
            if before != after:
                changes.append(f"{split}: {before} images of {_listed([name])}, now {after}")
        if was["labels"] != is_now["labels"] and not changes:
            changes.append(f"{split}: {'labels' if counted else 'bytes'} differ or are in another order")
        difference = (torch.tensor(was["sums"]) - torch.tensor(is_now["sums"])).abs().amax(1)
        places = torch.arange(len(counted)) % len(difference)
        pixels = math.prod(is_now["size"]) * torch.bincount(places, torch.tensor(is_now["classes"]))
        other = (difference > ROUNDING * pixels.sqrt()).tolist()
        rounding |= bool(difference.any())
        if any(other) and not changes:
            which = [name for place, name in enumerate(counted) if other[place % len(other)]]
            changes.append(f"{split}: images of {_listed(which)} replaced, changed or in another order")
    return changes, rounding


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"{name!r:.60}" for name in names[:3]) + more
