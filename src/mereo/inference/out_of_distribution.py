"""Detection of image files that are unlike the training images of a network."""

from collections.abc import Sequence
from pathlib import Path

from mereo.data.image_statistics import ImageStatistics, StatisticsRanges, file_statistics
from mereo.data.sets import find_dataset, is_dataset
from mereo.models import VisionModel

MOST = 32
"""Number of files that are checked, evenly spaced."""


def known_statistics(model: VisionModel) -> StatisticsRanges:
    """The ranges in the metadata of the weights, or else the ranges that follow from a data set with a name."""
    recorded = StatisticsRanges.from_dict(model.metadata.get("image_statistics"))
    data = str(model.metadata.get("data", ""))
    info = find_dataset(data) if is_dataset(data) else None
    if info is None or recorded != StatisticsRanges():
        return recorded
    return StatisticsRanges(
        sides=None if info.size is None else (min(info.size), min(info.size)),
        colour=(0.0, 0.0) if info.in_chans == 1 else None,
    )


def _no_pair(model: VisionModel, statistics: ImageStatistics) -> list[str]:
    """A reason if a network of two cameras gets a file in the proportions of one view; empty otherwise."""
    channels, height, width = model.image_shape
    one_view = width / height
    if channels != 2 or statistics.width / statistics.height > one_view * 2**0.5:
        return []
    return [f"{statistics.height} x {statistics.width} pixels, not two views side by side"]


def sampled(paths: Sequence[Path]) -> Sequence[Path]:
    """At most `MOST` of the files, evenly spaced."""
    return paths[:: -(-len(paths) // MOST) or 1]


def out_of_distribution(model: VisionModel, paths: Sequence[Path]) -> dict[Path, list[str]]:
    """The files that are unlike the training images, each with the reasons; unreadable files are skipped."""
    ranges, unlike = known_statistics(model), {}
    if ranges == StatisticsRanges() and model.image_shape[0] != 2:
        return {}
    for path in sampled(paths):
        try:
            with path.open("rb") as stream:
                statistics = file_statistics(stream)
            reasons = [*_no_pair(model, statistics), *ranges.differences(statistics)]
        except Exception:  # reported when the file is read
            continue
        if reasons:
            unlike[path] = reasons
    return unlike


def describe_out_of_distribution(model: VisionModel, paths: Sequence[Path]) -> str | None:
    """A line about the files that are unlike the training images; None if there are none."""
    unlike = out_of_distribution(model, paths)
    if not unlike:
        return None
    path, reasons = next(iter(unlike.items()))
    count = "the image does" if len(paths) == 1 else f"{len(unlike)} of {len(sampled(paths))} images do"
    return f"{count} not look like those that the network was trained on: {path} is {' and '.join(reasons)}"
