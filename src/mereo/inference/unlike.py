"""Which image files do not look like the images that a network was trained on."""

from collections.abc import Sequence
from pathlib import Path

from mereo.data.looks import Looks, look_at
from mereo.data.sets import find_dataset, is_dataset
from mereo.models import VisionModel

MOST = 32
"""Files that are looked at, evenly spread."""


def known_looks(model: VisionModel) -> Looks:
    """What the weights state of their training images; for named data sets also what is known of those."""
    stated, data = Looks.from_dict(model.metadata.get("looks")), str(model.metadata.get("data", ""))
    info = find_dataset(data) if is_dataset(data) else None
    if info is None or stated != Looks():
        return stated
    return Looks(
        sides=None if info.size is None else (min(info.size), min(info.size)),
        colour=(0.0, 0.0) if info.in_chans == 1 else None,
    )


def looked_at(paths: Sequence[Path]) -> Sequence[Path]:
    """Some of the files, at most `MOST`, evenly spread."""
    return paths[:: -(-len(paths) // MOST) or 1]


def unlike(model: VisionModel, paths: Sequence[Path]) -> dict[Path, list[str]]:
    """The files that do not look like the training images, each with the reasons. Unreadable files are left out."""
    looks, strange = known_looks(model), {}
    if looks == Looks():
        return {}
    for path in looked_at(paths):
        try:
            with path.open("rb") as stream:
                reasons = looks.unlike(look_at(stream))
        except Exception:  # reported when the file is read
            continue
        if reasons:
            strange[path] = reasons
    return strange


def describe_unlike(model: VisionModel, paths: Sequence[Path]) -> str | None:
    """A line about files that do not look like the training images; None where all do."""
    strange = unlike(model, paths)
    if not strange:
        return None
    path, reasons = next(iter(strange.items()))
    count = "the image does" if len(paths) == 1 else f"{len(strange)} of {len(looked_at(paths))} images do"
    return f"{count} not look like those that the network was trained on: {path} is {' and '.join(reasons)}"
