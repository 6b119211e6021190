"""The registry of data sets: facts that are known before anything is read, and the function that reads."""

import fnmatch
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

from mereo.errors import UsageError, unknown

if TYPE_CHECKING:
    from mereo.data.files import Layout
    from mereo.data.images import Images, ImageSet
    from mereo.data.load import Splits, Wanted
    from mereo.data.raw import RawDataset

_Arguments = ParamSpec("_Arguments")
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
        splits: number of samples of each split that the source defines, or of bytes.
        counts: what `splits` counts; of bytes, windows are made that are as long as the network's.
        augment: operations that "auto" means; none when empty.
        labels_per_image: objects in each image.
        fields: names of the `Batch` fields that it serves.
        files: patterns below the data root; a match shows that the data set is present. Empty for a data set in the
            package.
        path: the folder or file that is read; None for a registered data set.
        read: reads images from (data root, whether they may be downloaded); None for a path, and if there is `load`.
        load: makes the splits of data that is not stored images, such as text, from the arguments of `load_splits`.
        wrap: makes the served set from the stored images of a split, given the number of samples per image.
        margin: pixels that `wrap` adds to the stored images on every side.
        configure: changes of these facts for given options, its keyword arguments; its docstring lists them for users.
            None for a data set without options.
        task_options: options of the task that describe the data, for training on it; others may be given.
        network_arguments: arguments of networks that follow from the data, such as the number of joints; those that a
            network has and that are not given.
        layout: the files of each split and the class names of a folder, so that it need not be scanned again.
        opened: the splits of a source whose images are read one by one, so that it need not be opened again, or of
            images in memory.
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
    load: "Callable[[Wanted], Splits] | None" = None
    counts: Literal["samples", "bytes"] = "samples"
    configure: "Callable[..., Mapping[str, Any]] | None" = None
    task_options: Mapping[str, Any] = field(default_factory=dict)
    network_arguments: Mapping[str, Any] = field(default_factory=dict)
    layout: "Layout | None" = field(default=None, repr=False, compare=False)
    opened: "RawDataset | None" = field(default=None, repr=False, compare=False)

    @property
    def options(self) -> dict[str, Any]:
        """The options of the data set with their defaults."""
        known = {} if self.configure is None else inspect.signature(self.configure).parameters
        return {name: parameter.default for name, parameter in known.items()}

    def check_serves(self, inputs: str) -> None:
        """UsageError unless it has what a network reads, such as "images"."""
        if inputs not in self.fields:
            others = [name for name, info in sorted(DATASETS.items()) if inputs in info.fields]
            named = f" such as {' or '.join(others[:3])}" if others else ""
            raise UsageError(
                f"data is {self.name!r}, which is {self.fields[0]}, and {inputs} are needed; give other data{named}, or"
                f" a network that reads {self.fields[0]}."
            )

    def in_windows(self, length: int) -> "DatasetInfo":
        """The same data set, its splits counted in windows of `length` bytes if they are counted in bytes."""
        if self.counts != "bytes":
            return self
        return replace(self, counts="samples", splits={name: -(-n // length) for name, n in self.splits.items()})


DATASETS: dict[str, DatasetInfo] = {}


def _imported(place: str, /, *arguments: Any, **given: Any) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)(*arguments, **given)


def later(place: str, **given: Any) -> "partial[Any]":
    """A function "module:name" with some of its arguments, whose module is imported when it is called."""
    return partial(_imported, place, **given)


def _with_arguments_of(make: Callable[_Arguments, DatasetInfo]) -> Callable[_Arguments, DatasetInfo]:
    """`register_dataset`, so that its arguments need not be written twice."""

    def register_dataset(*args: _Arguments.args, **facts: _Arguments.kwargs) -> DatasetInfo:
        """Register a data set by name for the library and the command line. It takes the arguments of `DatasetInfo`."""
        info = make(*args, **facts)
        if (info.read is None) == (info.load is None):
            raise UsageError(f"read is {info.read} and load is {info.load}; {info.name} needs one of them.")
        if info.name in DATASETS:
            raise UsageError(f"name is {info.name!r}, which is registered already; choose another name.")
        if not info.name.isidentifier():
            raise UsageError(
                f"name is {info.name!r}; it must consist of letters, digits and underscores, unlike a path."
            )
        return DATASETS.setdefault(info.name, info)

    register_dataset.__qualname__ = "register_dataset"
    return register_dataset


register_dataset = _with_arguments_of(DatasetInfo)
"""Register a data set by name for the library and the command line. It takes the arguments of `DatasetInfo`.

Raises:
    UsageError: for a name that is taken, or that could be a path; without a reader, and with two.
"""


def list_datasets(pattern: str = "*") -> list[str]:
    """Names of data sets that match a shell pattern."""
    return fnmatch.filter(sorted(DATASETS), pattern)


def show_option(value: Any) -> str:
    """The value of an option as `find_dataset` reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read_option(option: str, text: str, default: Any) -> Any:
    """The value of an option, which has the type of its default."""
    if isinstance(default, bool):
        if text in ("true", "false"):
            return text == "true"
        raise UsageError(f"{option} is {text!r}; it must be true or false.")
    if isinstance(default, str):
        return text
    try:
        return type(default)(text)
    except (ValueError, OverflowError):
        kind = "a whole number" if isinstance(default, int) else "a number"
        raise UsageError(f"{option} is {text!r}; it must be {kind}.") from None


def find_dataset(data: str) -> DatasetInfo | None:
    """The facts of a registered data set, such as "mnist" or, with options, "multimnist:max_shift=6"; None for any
    other name.

    Raises:
        UsageError: for an option that the data set does not have, and a value that it does not take.
    """
    name, colon, words = data.partition(":")
    info = DATASETS.get(name)
    if info is None or not colon:
        return info
    known, given = info.options, {}
    for word in words.split(","):
        option, _, value = word.partition("=")
        if option not in known:
            raise (
                unknown(f"option of {name}", option, known)
                if known
                else UsageError(f"data is {data!r}; {name} has no options, so give {name!r}.")
            )
        given[option] = _read_option(f"{option} of {name}", value, known[option])
    assert info.configure is not None
    return replace(info, name=data, **info.configure(**given))


def is_dataset(data: str) -> bool:
    """Whether `find_dataset` has a data set of that name with these options."""
    try:
        return find_dataset(data) is not None
    except UsageError:
        return False
