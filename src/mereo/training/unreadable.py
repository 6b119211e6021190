"""Unreadable files: searched for before a training as long as that is quick, and listed in the run folder."""

import csv
import io
import time
from dataclasses import replace

import torch

from mereo.data import DatasetInfo, Splits
from mereo.data.layout import read_layout
from mereo.data.raw import Request
from mereo.data.stream.streamed_set import StreamedSet
from mereo.files import write_atomically
from mereo.training.run_folder import RunFolder

SECONDS = 3.0
"""Seconds spent on the search; in a larger folder only the first files are checked."""
_PART = 64


def without_unreadable(info: DatasetInfo, *, strict: bool = False) -> DatasetInfo:
    """The same data without unreadable files, which are named in a warning as in the run itself."""
    if info.path is None or info.load is not None:
        return info
    end, counts = time.monotonic() + SECONDS, dict(info.splits)
    layout = read_layout(info.path) if info.layout is None else info.layout
    for name, split in layout.splits.items():
        for indices in torch.arange(len(split)).split(_PART):
            if time.monotonic() < end:
                counts[name] -= split.take(indices).read(Request((1, 1), 3, strict=strict)).skipped
    return replace(info, splits=counts)


def unreadable_files(splits: Splits) -> list[tuple[str, str, str]]:
    """Split, name and reason of each; of streams, the files met so far."""
    listed = list(splits.unreadable)
    for name, images in (("train", splits.train), ("validation", splits.validation), ("test", splits.test)):
        if isinstance(images, StreamedSet):
            listed += [(name, file, reason) for file, reason in images.unreadable]
    return listed


def write_set_aside(folder: RunFolder, splits: Splits) -> bool:
    """Write the list into the run folder; whether there is anything to list."""
    listed = unreadable_files(splits)
    if listed:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("split", "file", "reason"))
        writer.writerows(listed)
        write_atomically(folder.set_aside, text.getvalue())
    return bool(listed)
