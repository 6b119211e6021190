"""Opens data sets whose images are read one by one."""

import glob
import itertools
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from mereo.data.layout_options import LayoutOptions
from mereo.data.mask_folder import CLASS_FILE
from mereo.data.names import SPLITS, TABLES, split_of
from mereo.data.raw import RawDataset
from mereo.data.regular import kind_of, user_path
from mereo.data.stream.hub import PREFIX, open_hub
from mereo.data.stream.labels import Part, join_labels, make_dataset, make_masked, wants_masks
from mereo.data.stream.tables import TableStore, class_names, has_lists, open_table, read_labels
from mereo.data.stream.tar_index import read_index
from mereo.data.stream.tar_store import TarStore
from mereo.errors import MereoError, UsageError
from mereo.files import read_regular

TAR = (".tar",)
CLASS_FILES = ("classes.txt", "classnames.txt")
_PATTERN, _BRACES = re.compile(r"[*?\[{]"), re.compile(r"\{([^{}]*)\}")
_MOST_FILES, _LONGEST, _LARGEST_LIST = 100_000, 4096, 2**24
_FOLDERS = (*SPLITS, "data")


def expand(pattern: str) -> list[str]:
    """`a-{00..02}.{tar,zip}` written out: numbers keep their leading zeros.

    Raises:
        UsageError: for a pattern of more than 100,000 files, or longer than a path may be.
    """
    if len(pattern) > _LONGEST:
        raise UsageError(f"data has {len(pattern):,} characters; a pattern of files may have {_LONGEST:,}.")
    texts = [pattern]
    # The innermost braces first: what holds other braces is written out in a later round.
    while any(_BRACES.search(text) for text in texts):
        written: list[str] = []
        for text in texts:
            pieces = _BRACES.split(text)  # text outside of braces, and inside, in turn
            choices = [_choices(piece) if place % 2 else [piece] for place, piece in enumerate(pieces)]
            if math.prod(map(len, choices)) + len(written) > _MOST_FILES:
                raise UsageError(f"data is {pattern[:80]!r}, a pattern of more than {_MOST_FILES:,} files; shorten it.")
            written += map("".join, itertools.product(*choices))
        texts = written
    return texts


def _choices(braced: str) -> list[str]:
    """The alternatives between braces, written out."""
    numbers = re.fullmatch(r"([0-9]+)\.\.([0-9]+)", braced)
    if numbers is None:
        return braced.split(",")
    first, last = int(numbers[1]), int(numbers[2])
    if not first <= last < first + _MOST_FILES:
        raise UsageError(
            f"data has {{{braced[:40]}}}; it must run from a number up to a larger one, over at most {_MOST_FILES:,}."
        )
    return [str(number).zfill(len(numbers[1])) for number in range(first, last + 1)]


def _inside(folder: Path) -> list[Path]:
    """The tar files and tables of a folder and of its folders for splits; empty if it has folders of classes."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    for place in [entry for entry in entries if entry.is_dir()]:
        members = sorted(place.iterdir()) if place.name in _FOLDERS else [place]
        if any(member.is_dir() for member in members):
            return []
        entries += [member for member in members if not member.name.startswith(".")]
    return [entry for entry in entries if entry.suffix in TAR + TABLES]


def _files(data: str, root: Path) -> list[Path]:
    """The files of a path or pattern, relative to the working folder or else to the root; none for an image folder."""
    path = user_path("data", data)
    for base in (path, root / path):
        kind = kind_of(base)
        if kind == "folder":
            return _inside(base)
        if base.suffix in (*TAR, *TABLES) and kind == "file":
            return [base]
        if _PATTERN.search(data):
            texts = expand(str(base))
            matched = [sorted(glob.glob(text)) if re.search(r"[*?\[]", text) else [text] for text in texts]  # noqa: PTH207
            paths = [Path(path) for path in itertools.chain.from_iterable(matched)]
            missing = [path for path in paths if not path.is_file()]
            if paths and not missing:
                return paths
            if len(missing) < len(paths):
                raise UsageError(f"data is {data!r}, and of its {len(paths)} files {missing[0]} does not exist.")
    return []


def is_stream(data: str | Path, root: Path) -> bool:
    """Whether `open_stream` reads this data: from the hub, tar files or tables."""
    text = str(data)
    if text.startswith(PREFIX) or _files(text, root):
        return True
    path = user_path("data", text)
    there = any(kind_of(base) == "folder" for base in (path, root / path))
    return not there and (Path(text).suffix in (*TAR, *TABLES) or bool(_PATTERN.search(text)))


def open_stream(
    data: str | Path, root: Path, *, evaluation: bool = False, options: LayoutOptions | None = None
) -> RawDataset:
    """The splits of a data set whose images are read one by one and need not fit in memory.

    The split of a file is a word in its name or the name of its folder: train, val, validation or test; other files are
    for training.

    Args:
        data: `hf:owner/name` of the Hugging Face hub; a folder of tar files (WebDataset shards) or of Parquet or Arrow
            files; one such file, or a pattern of them, such as `shards/{train,val}-*.tar` or `s-{0000..0099}.tar`.
        root: base of relative paths that do not exist in the working folder.
        evaluation: whether the images are for a trained network: nothing is set aside, and training images may lack.
        options: what the user states of the labels.
    """
    text, options = str(data), options or LayoutOptions()
    if text.startswith(PREFIX):
        return open_hub(text, evaluation=evaluation, options=options)
    files = _files(text, root)
    kinds = {file.suffix for file in files}
    if not files:
        raise UsageError(f"data is {text!r}, and there is no such file; give a folder, a file or a pattern.")
    if kinds <= set(TAR):
        return _open_files(files, text, _tars, evaluation, options)
    if kinds <= set(TABLES):
        return _open_files(files, text, _tables, evaluation, options)
    raise UsageError(
        f"data is {text!r}, with files of type {', '.join(sorted(kinds))}; all must be of one type, or tables."
    )


_Opened = tuple[Part, list[str] | None]
"""A split, and the names of the classes if there are some."""


def _open_files(
    files: Sequence[Path],
    data: str,
    read: Callable[[Sequence[Path], LayoutOptions], _Opened],
    evaluation: bool,
    options: LayoutOptions,
) -> RawDataset:
    splits: dict[str, list[Path]] = {}
    for file in files:
        if kind_of(file) != "file":
            raise UsageError(f"data is {data!r}, and {file} is not a regular file; remove it or name others.")
        splits.setdefault(split_of(file.name) or SPLITS.get(file.parent.name.lower(), "train"), []).append(file)
    parts, names = {}, None
    for split, members in splits.items():
        parts[split], known = read(members, options)
        names = names or known
    if any(part.masks is not None for part in parts.values()):
        return make_masked(parts, files[0].parent / CLASS_FILE, data, evaluation=evaluation)
    return make_dataset(parts, names, data, evaluation=evaluation, options=options)


def _tars(files: Sequence[Path], options: LayoutOptions) -> _Opened:
    indices = [read_index(file, options.label_column) for file in files]
    folders = dict.fromkeys(place for file in files for place in (file.parent, file.parent.parent))
    texts = (place / name for place in folders for name in CLASS_FILES)
    names = next((_lines(text) for text in texts if kind_of(text) == "file"), None)
    masked = any(len(index.mask_offsets) for index in indices)
    without = [file for file, index in zip(files, indices, strict=True) if not len(index.labels)]
    store, count = TarStore(files, indices), sum(len(index.offsets) for index in indices)
    if masked and (wants_masks(options) or without):
        if not wants_masks(options):
            raise UsageError(f"{without[0]} has masks and no labels; give --task segmentation.")
        labels = np.zeros(count, dtype=np.int64)
        return Part(store, torch.arange(count), labels, TarStore(files, indices, masks=True)), names
    forms = [(tuple(map(str, index.columns.tolist())), bool(len(index.listed))) for index in indices]
    other = next((file for file, form in zip(files, forms, strict=True) if form != forms[0]), None)
    if other is not None:
        raise UsageError(f"{files[0]} and {other} have labels of different forms, or of other fields; use one form.")
    labels = join_labels([index.labels for index in indices])
    return Part(store, torch.arange(count), labels, None, *forms[0]), names


def _lines(path: Path) -> list[str]:
    """The class names in a file, one a line."""
    try:
        return read_regular(path, _LARGEST_LIST).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise MereoError(f"the class names in {path} cannot be read ({error}); it must be text in UTF-8.") from error


def _tables(files: Sequence[Path], options: LayoutOptions) -> _Opened:
    tables = [open_table(file, options) for file in files]
    store, numbers = TableStore(tables), torch.arange(sum(table.rows for table in tables))
    if any(table.mask is not None for table in tables):
        return Part(store, numbers, numbers.numpy() * 0, TableStore(tables, masks=True)), None
    columns, listed = tables[0].columns, has_lists(tables[0])
    other = next((t.path for t in tables if (t.columns, has_lists(t)) != (columns, listed)), None)
    if other is not None:
        raise UsageError(f"{files[0]} and {other} have labels in other columns, or of another kind; use the same.")
    return Part(store, numbers, join_labels(list(map(read_labels, tables))), None, columns, listed), (
        None if listed else class_names(tables[0])
    )
