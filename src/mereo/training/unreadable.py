"""Searches an image folder for unreadable files before a training, as long as that is quick."""

import time
from dataclasses import replace

import torch

from mereo.data import DatasetInfo
from mereo.data.folder import read_layout
from mereo.data.raw import Request

SECONDS = 3.0
"""Seconds spent on the search; in a larger folder only the first files are checked."""
_PART = 64


def without_unreadable(info: DatasetInfo, *, strict: bool = False) -> DatasetInfo:
    """The same data without unreadable files, which are named in a warning as in the run itself."""
    if info.path is None or info.load is not None:
        return info
    end, counts = time.monotonic() + SECONDS, dict(info.splits)
    layout = read_layout(info.path) if info.layout is None else info.layout
    for name, split in layout[0].items():
        for indices in torch.arange(len(split)).split(_PART):
            if time.monotonic() < end:
                counts[name] -= split.take(indices).read(Request((1, 1), 3, strict=strict)).skipped
    return replace(info, splits=counts)
