"""Refuses a folder that holds data sets of its own where classes are expected."""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence

from mereo.data.names import SPLITS
from mereo.data.trees import Tree
from mereo.errors import UsageError

_SHOWN = 5


def check_classes(tree: Tree) -> None:
    """UsageError where subfolders are data sets rather than classes; a warning where one may be.

    A subfolder is a data set if it has splits, or a folder named like another class. Those that hold only folders of
    images are data sets if there are several, unless other classes hold images themselves and the names of the folders
    recur: day and night in each are parts of a class.
    """
    tops = [folder for folder in tree.folders if "/" not in folder]
    # Files of each folder itself: class folders hold images, a data set holds class folders.
    filled = {file.rpartition("/")[0] for file in tree.files}
    inside: dict[str, set[str]] = {top: set() for top in tops}
    for folder in filled:
        top, slash, rest = folder.partition("/")
        if slash:
            inside[top].add(rest)
    _check_splits(tree, inside)
    nested = {top: below for top, below in inside.items() if len(below) > 1 and top not in filled}
    if nested and len(nested) == len(tops):
        raise _refusal(tree, list(nested), "each has folders rather than images")
    for top, below in nested.items():
        if shared := sorted(below & set(tops)):
            raise _refusal(tree, [top], f"it has a folder {shared[0]!r}, and so has {str(tree.path)!r}")
    names = Counter(name for below in nested.values() for name in below)
    if len(nested) > 1 and max(names.values()) == 1:
        raise _refusal(tree, list(nested), "each has folders rather than images, unlike the others")
    if nested:
        _warn(tree, *next(iter(nested.items())))


def _check_splits(tree: Tree, inside: Mapping[str, set[str]]) -> None:
    """UsageError for subfolders that have splits, with classes in them or with images."""
    of_splits = {top: sorted(name for name in below if _split(name)) for top, below in inside.items()}
    if sets := [top for top, names in of_splits.items() if any("/" in name for name in names)]:
        raise _refusal(tree, sets, "each has folders of splits")
    for top, names in of_splits.items():
        if len({_split(name) for name in names}) > 1:
            raise UsageError(
                f"data is {str(tree.path)!r}, where splits are inside of classes, such as {f'{top}/{names[0]}'!r}; they"
                f" must be outside: {f'{names[0]}/{top}'!r}."
            )


def _split(folder: str) -> str | None:
    """The split that the first part of a path is named after."""
    return SPLITS.get(folder.partition("/")[0].lower())


def _refusal(tree: Tree, datasets: Sequence[str], reason: str) -> UsageError:
    more = ", ..." if len(datasets) > _SHOWN else ""
    return UsageError(
        f"data is {str(tree.path)!r}, whose folders are data sets rather than classes"
        f" ({', '.join(datasets[:_SHOWN])}{more}: {reason}); give one of them, such as"
        f" {str(tree.path / datasets[0])!r}. If they are classes, list their images in a .csv with path and label."
    )


def _warn(tree: Tree, top: str, below: set[str]) -> None:
    names = ", ".join(sorted(below)[:_SHOWN]) + (", ..." if len(below) > _SHOWN else "")
    warnings.warn(
        f"{tree.path} has the class {top!r} of images in folders ({names}), which all count as {top!r}. If {top!r} is a"
        f" data set of its own, give {str(tree.path / top)!r}.", UserWarning, stacklevel=2,
    )  # fmt: skip
