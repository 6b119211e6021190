"""The registry of data sets: facts that are known before anything is read, and the function that reads."""

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mereo.errors import UsageError

if TYPE_CHECKING:
    from mereo.data.folder import Layout
    from mereo.data.images import Images, ImageSet
    from mereo.data.raw import RawDataset
    from mereo.data.text import Text

DEFAULT_AUGMENT = ("crop=4", "flip")
"""The default augmentation of photographs, and of image folders."""


@dataclass(frozen=True)
class DatasetInfo:
    """Facts about a data set that are known before it is read.

    Attributes:
        name: as given to `load_splits`.
        summary: one line.
        source: where it is from.
        num_classes, in_chans: number of classes, and channels of its images.
        size: native (height, width); None if images differ.
        splits: number of images of each split that the source defines; of text, bytes.
        augment: operations that "auto" means; none when empty.
        labels_per_image: objects in each image.
        fields: names of the `Batch` fields that it serves.
        files: patterns below the data root; a match shows that the data set is present. Empty for a data set in the
            package.
        path: the folder or file that is read; None for a registered data set.
        read: reads it from (data root, whether it may be downloaded); None for a path and for text.
        wrap: makes the served set from the stored images of a split, given the number of samples per image.
        margin: pixels that `wrap` adds to the stored images on every side.
        text: reads text from the data root; None for images. The splits of text count bytes.
        layout: the files of each split and the class names of a folder, so that it need not be scanned again.
    """

    name: str
    summary: str
    source: str
    num_classes: int
    in_chans: int
    size: tuple[int, int] | None
    splits: Mapping[str, int]
    augment: tuple[str, ...] = DEFAULT_AUGMENT
    labels_per_image: int = 1
    fields: tuple[str, ...] = ("images", "labels")
    files: tuple[str, ...] = ()
    path: Path | None = None
    read: "Callable[[Path, bool], RawDataset] | None" = None
    wrap: "Callable[[ImageSet, int], Images] | None" = None
    margin: int = 0
    text: "Callable[[Path], Text] | None" = None
    layout: "Layout | None" = field(default=None, repr=False, compare=False)


DATASETS: dict[str, DatasetInfo] = {}


def register_dataset(
    name: str,
    *,
    summary: str,
    source: str,
    num_classes: int,
    in_chans: int,
    size: tuple[int, int] | None,
    splits: Mapping[str, int],
    read: "Callable[[Path, bool], RawDataset] | None" = None,
    augment: tuple[str, ...] = DEFAULT_AUGMENT,
    labels_per_image: int = 1,
    fields: tuple[str, ...] = ("images", "labels"),
    files: tuple[str, ...] = (),
    wrap: "Callable[[ImageSet, int], Images] | None" = None,
    margin: int = 0,
    text: "Callable[[Path], Text] | None" = None,
) -> DatasetInfo:
    """Register a data set by name for the library and the command line. The arguments are those of `DatasetInfo`.

    Raises:
        UsageError: for a name that is taken, or that could be a path; without a reader, and with two.
    """
    if (read is None) == (text is None):
        raise UsageError(f"read is {read} and text is {text}; {name} needs one of them.")
    if name in DATASETS:
        raise UsageError(f"name is {name!r}, which is registered already; choose another name.")
    if not name.isidentifier():
        raise UsageError(f"name is {name!r}; it must consist of letters, digits and underscores, unlike a path.")
    DATASETS[name] = DatasetInfo(
        name=name,
        summary=summary,
        source=source,
        num_classes=num_classes,
        in_chans=in_chans,
        size=size,
        splits=splits,
        augment=augment,
        labels_per_image=labels_per_image,
        fields=fields,
        files=files,
        read=read,
        wrap=wrap,
        margin=margin,
        text=text,
    )
    return DATASETS[name]


def list_datasets(pattern: str = "*") -> list[str]:
    """Names of data sets that match a shell pattern."""
    return fnmatch.filter(sorted(DATASETS), pattern)
