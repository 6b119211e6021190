"""Sequences of joints in files: `.skeleton` of NTU RGB+D, and arrays (.npy, .npz).

A folder is one of

    S001C002P003R002A013.skeleton, ...       the class is A013; if all names have a subject P003, the subjects of the
                                             cross-subject protocol are for training and the others for testing, unless
                                             a class has no training subject; with split_by="camera" the cameras C002
                                             and C003 are for training, and C001 for testing (cross-view)
    falls/one.npy, walks/two.npy, ...        a folder a class; folders such as train and test above them are splits
    labels.csv and arrays                    the column label (or class), and file, for a sequence a file; without file,
                                             a row for each sequence of one array, which .npz may hold with lengths

An array is a sequence (frames, joints, 3), (frames, bodies, joints, 3) or (frames, coordinates), or several of them
along an axis before, whose frames of zeros at the end are padding.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mereo.data.load import Splits, Wanted
from mereo.data.names import IMAGE_SUFFIXES, split_of
from mereo.data.registry import DatasetInfo
from mereo.data.regular import kind_of, open_regular, user_path
from mereo.data.sequences import Sequences
from mereo.data.skeletons import COORDINATES, bodies_of
from mereo.data.split import stratified
from mereo.errors import MereoError, UsageError, type_of

SKELETON, ARRAYS = ".skeleton", (".npy", ".npz")
JOINTS, BODIES, NUMBERS, ABOUT = 25, 2, 12, 10
"""Of NTU's files: joints of a body, bodies that are kept, numbers of a joint, and numbers about a body."""
TRAINING_SUBJECTS = frozenset((1, 2, 4, 5, 8, 9, *range(13, 20), 25, 27, 28, 31, 34, 35, 38))
"""Subjects of the cross-subject protocol of NTU RGB+D that are trained on."""
PROTOCOLS = {
    "camera": (1, frozenset((2, 3)), "cameras of the cross-view protocol"),
    "subject": (2, TRAINING_SUBJECTS, "subjects of the cross-subject protocol"),
}
"""Of NTU RGB+D: the field of a name that divides the files, its numbers that are trained on, and words for it."""
HELD_OUT = 0.1
"""Share of the sequences that is held out for testing, and for choosing the epoch."""
AUGMENT = ("speed=0.8:1.25", "turn=30")
_NAME = re.compile(r"S\d{3}C(\d{3})P(\d{3})R\d{3}A(\d{3})")
_SHOWN = 5


class Item(NamedTuple):
    """A sequence before it is read: its file, its row in an array of several or None, its class and its split."""

    file: Path
    row: int | None
    label: str
    split: str | None


# --- reading --------------------------------------------------------------------------------------------------------


def read_skeleton(text: str) -> Tensor:
    """The frames of an NTU file: (frames, 2 * 25 * 3); a frame of more than two bodies is zero, as are absent ones.

    The file counts its frames, each frame its bodies, each body its joints: ten numbers about a body, and twelve about
    a joint, of which the first three are its place in metres.

    Raises:
        UsageError: for a file that ends early, other numbers of joints, and coordinates that are not finite.
    """
    numbers, place = np.array(text.split(), np.float64), 0

    def take(count: int, what: str) -> Any:
        nonlocal place
        place += count
        if place > len(numbers):
            raise UsageError(f"it ends within {what}; it is cut off.")
        return numbers[place - count : place]

    total = int(take(1, "the number of its frames")[0])
    if total > len(numbers):
        raise UsageError(f"it states {total} frames and holds {len(numbers)} numbers; it is cut off.")
    frames = np.zeros((max(total, 0), BODIES, JOINTS, COORDINATES), np.float32)
    for number, frame in enumerate(frames):
        what = f"frame {number + 1} of {total}"
        bodies = int(take(1, what)[0])
        for body in range(bodies):
            take(ABOUT, what)
            joints = int(take(1, what)[0])
            if joints != JOINTS:
                raise UsageError(f"{what} has a body of {joints} joints; it must have {JOINTS}.")
            found = take(JOINTS * NUMBERS, what).reshape(JOINTS, NUMBERS)[:, :COORDINATES]
            if bodies <= BODIES:
                frame[body] = found
    return checked(frames)


def checked(values: Any) -> Tensor:
    """One sequence as float32 (frames, coordinates); UsageError for shapes and numbers that are none."""
    array = np.asarray(values)
    if array.ndim not in (2, 3, 4) or array.dtype.kind not in "fiu":
        raise UsageError(f"it is {array.dtype} of shape {array.shape}; it must be numbers (frames, joints, 3).")
    if not len(array) or not array[0].size:
        raise UsageError(f"it is of shape {array.shape}; a sequence needs at least one frame and one joint.")
    frames = torch.from_numpy(np.ascontiguousarray(array, np.float32)).flatten(1)
    if (array.ndim > 2 and array.shape[-1] != COORDINATES) or frames.shape[1] % COORDINATES:
        raise UsageError(f"it is of shape {array.shape}; a joint has {COORDINATES} coordinates, x, y and z.")
    wrong = ~frames.isfinite().all(1)
    if bool(wrong.any()):
        raise UsageError(f"frame {int(wrong.long().argmax())} has a number that is not finite (NaN or infinite).")
    if not bool(frames.any()):
        raise UsageError("all of its frames are zero; it shows no body.")
    return frames


@lru_cache(1)
def _array(path: Path, changed: int) -> tuple[Any, Any]:
    """The array of a file and the lengths beside it, if any."""
    with open_regular(path) as file:
        found = np.load(io.BytesIO(file.read()), allow_pickle=False)
    if isinstance(found, np.ndarray):
        return found, None
    names = [name for name in found.files if name not in ("lengths", "labels")]
    name = "sequences" if "sequences" in names else names[0] if len(names) == 1 else None
    if name is None:
        raise UsageError(f"its arrays are {', '.join(found.files) or 'none'}; name the one to read sequences.")
    return found[name], found["lengths"] if "lengths" in found.files else None


@contextmanager
def _naming(path: Path, where: str) -> Iterator[None]:
    """What is wrong with a file, as an error that says where."""
    try:
        yield
    except OSError as error:
        raise MereoError(f"cannot read {path}: {error.strerror or error}.") from error
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    except (ValueError, KeyError, IndexError, EOFError, OverflowError) as error:
        raise UsageError(f"{where} is not sequences of joints as {path.suffix} holds them ({error}).") from error


def _holds_several(path: Path) -> bool:
    """Whether an array holds several sequences: (n, frames, joints, 3), or three axes that do not end in x, y, z."""
    with _naming(path, str(path)):
        array, lengths = _array(path, path.stat().st_mtime_ns)
        return lengths is not None or array.ndim == 5 or (array.ndim == 3 and array.shape[-1] != COORDINATES)


def read_item(path: Path, row: int | None) -> Tensor:
    """The sequence of a file, or of a row of its array: float32 (frames, coordinates); errors name it."""
    with _naming(path, str(path) if row is None else f"{path}, sequence {row}"):
        if path.suffix.lower() == SKELETON:
            with open_regular(path) as file:
                return read_skeleton(file.read().decode("ascii"))
        array, lengths = _array(path, path.stat().st_mtime_ns)
        if row is None:
            return checked(array)
        one = array[row]
        if lengths is not None:
            return checked(one[: int(lengths[row])])
        there = np.flatnonzero(np.asarray(one).reshape(len(one), -1).any(1))
        return checked(one[: there[-1] + 1] if len(there) else one)


def sequences_of(given: Any) -> tuple[list[str], list[Tensor]]:
    """Names and sequences of files, of an array, or of a list of these."""
    if isinstance(given, str | Path):
        path = Path(given)
        if path.suffix.lower() not in (SKELETON, *ARRAYS):
            raise UsageError(f"{path} is not a file of sequences; give {SKELETON}, {' or '.join(ARRAYS)}.")
        if path.suffix.lower() == SKELETON or not _holds_several(path):
            return [path.stem], [read_item(path, None)]
        count = len(_array(path, path.stat().st_mtime_ns)[0])
        return [f"{path.stem}-{row}" for row in range(count)], [read_item(path, row) for row in range(count)]
    if isinstance(given, np.ndarray | Tensor):
        array = np.asarray(given)
        many = array.ndim == 4 or (array.ndim == 3 and array.shape[-1] != COORDINATES)
        each = list(array) if many else [array]
        return [f"sequence{number}" for number in range(len(each))], [checked(one) for one in each]
    if not isinstance(given, Sequence) or not given:
        raise UsageError(f"sequences are {type_of(given)}; give files, arrays (frames, joints, 3), or a list of them.")
    found = [sequences_of(each) for each in given]
    return [name for names, _ in found for name in names], [one for _, each in found for one in each]


# --- folders --------------------------------------------------------------------------------------------------------


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if not path.name.startswith(".") and kind_of(path) == "file")


def holds_sequences(path: Path) -> bool:
    """Whether a folder holds sequences: a .skeleton file, or arrays and no image."""
    if kind_of(path) != "folder":
        return False
    arrays = False
    for each in path.rglob("*"):
        suffix = each.suffix.lower()
        if suffix == SKELETON:
            return True
        if suffix in IMAGE_SUFFIXES:
            return False
        arrays = arrays or suffix in ARRAYS
    return arrays


def find_items(folder: Path, split_by: str = "auto") -> tuple[list[Item], str]:
    """The sequences of a folder in order, and how their classes were found."""
    files = _files(folder)
    if found := [path for path in files if path.suffix.lower() == SKELETON]:
        return _ntu(found, split_by)
    if split_by != "auto":
        raise UsageError(f"split_by is {split_by!r}, which is stated by names of {SKELETON} files alone; leave it out.")
    arrays, tables = ([path for path in files if path.suffix.lower() in kinds] for kinds in (ARRAYS, (".csv",)))
    if tables:
        return _of_table(tables, arrays)
    items = []
    for path in arrays:
        *above, label = path.relative_to(folder).parts[:-1] or ("",)
        if not label or split_of(label):
            raise UsageError(f"{path} is in no folder of a class; give a folder a class, or a labels.csv with labels.")
        items.append(Item(path, None, label, next(filter(None, map(split_of, above)), None)))
    return items, "a folder a class"


def _ntu(files: Sequence[Path], split_by: str) -> tuple[list[Item], str]:
    matches = [_NAME.search(path.stem) or re.search(r"A(\d{3})", path.stem) for path in files]
    for path, match in zip(files, matches, strict=True):
        if match is None:
            raise UsageError(f"{path} has no class such as A013 in its name; name files as NTU RGB+D does.")
    field, chosen, words = PROTOCOLS["subject" if split_by == "auto" else split_by]
    numbers = [int(match[field]) if match and match.re is _NAME else None for match in matches]
    trained = [number in chosen for number in numbers]
    labels = [f"A{match[match.re.groups]}" for match in matches if match is not None]
    # A part of the data may not show every class to a training subject or camera.
    there = {label for label, own in zip(labels, trained, strict=True) if own}
    known = None not in numbers and not all(trained) and there == set(labels)
    if split_by != "auto" and not known:
        raise UsageError(
            f"split_by is {split_by!r}, and the files do not show every class to a {split_by} for training and to one"
            " for testing; leave it out."
        )
    items = [
        Item(path, None, label, ("train" if own else "test") if known else None)
        for path, label, own in zip(files, labels, trained, strict=True)
    ]
    return items, "classes by the names of files" + (f", {words}" if known else "")


def _of_table(tables: Sequence[Path], arrays: Sequence[Path]) -> tuple[list[Item], str]:
    if len(tables) > 1:
        raise UsageError(f"{tables[0]} and {tables[1]} are two tables; leave one of them.")
    (table,) = tables
    with open_regular(table) as file:
        rows = list(csv.DictReader(io.StringIO(file.read().decode("utf-8-sig", "replace"))))
    names = [name for name in (rows[0] if rows else {}) if name]
    label = next((name for name in names if name.lower() in ("label", "class")), None)
    column = next((name for name in names if name.lower() in ("file", "path", "name", "sequence")), None)
    split = next((name for name in names if name.lower() == "split"), None)
    if label is None:
        raise UsageError(f"{table} has the columns {', '.join(names) or 'none'}; label is needed, and maybe file.")
    if column is None and len(arrays) != 1:
        raise UsageError(f"{table} has no column file, and there are {len(arrays)} arrays; name the file of each row.")
    by_name = {
        key: path for path in arrays for key in (path.stem, path.name, path.relative_to(table.parent).as_posix())
    }
    items = []
    for number, row in enumerate(rows):
        path = arrays[0] if column is None else by_name.get((row[column] or "").strip())
        if path is None or not (row[label] or "").strip():
            wrong = f"the label is {row[label]!r}" if path else f"{column} is {row[column or '']!r}, which is not there"
            raise UsageError(f"{table}, row {number + 2}: {wrong}; mend the row.")
        items.append(
            Item(
                path,
                number if column is None else None,
                row[label].strip(),
                split_of((row[split] or "") if split else ""),
            )
        )
    if column is None and len(items) != (count := len(_array(arrays[0], arrays[0].stat().st_mtime_ns)[0])):
        raise UsageError(f"{table} has {len(items)} rows and {arrays[0]} {count} sequences; give a row for each.")
    return items, f"labels in {table.name}"


def divide(items: Sequence[Item], names: Sequence[str]) -> dict[str, list[Item]]:
    """The splits: as they are stated, else a tenth of the sequences for each that is missing, classes in proportion."""
    parts: dict[str, list[Item]] = {"train": [], "validation": [], "test": []}
    for item in items:
        parts[item.split or "train"].append(item)
    whole = len(parts["train"])
    for seed, split in enumerate(("test", "validation")):
        if not parts[split]:
            labels = torch.tensor([names.index(item.label) for item in parts["train"]], dtype=torch.int64)
            kept, held = stratified(labels, max(round(HELD_OUT * whole), 1), seed, spare=1)
            parts[split], parts["train"] = [
                [parts["train"][place] for place in places.tolist()] for places in (held, kept)
            ]
    return parts


def path_info(path: Path, data: str, split_by: str = "auto") -> DatasetInfo:
    """Facts about a folder of sequences, divided as `LayoutOptions.split_by` says; only the first one is read."""
    items, evidence = find_items(path, split_by)
    names = sorted({item.label for item in items})
    if len(names) < 2:
        raise UsageError(f"data is {data!r}, with {len(names)} classes of sequences; at least two are needed.")
    parts = divide(items, names)
    for split, part in parts.items():
        if not part:
            raise UsageError(f"data is {data!r}, with {len(items)} sequences, too few for {split}; give more.")
    untrained = [name for name in names if name not in {item.label for item in parts["train"]}]
    if untrained:
        raise UsageError(f"data is {data!r}, with no training sequence of {untrained[0]!r}; add some, or leave it out.")
    features = _first(items)
    bodies, joints = bodies_of(features)
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    summary = f"sequences of {bodies} x {joints} joints, {evidence}; {len(names)} classes ({shown})"
    return DatasetInfo(
        data, summary, str(path), len(names), 1, None, {split: len(part) for split, part in parts.items()}, AUGMENT,
        fields=("sequences", "lengths", "labels"), path=path, network_arguments={"joints": joints, "bodies": bodies},
        load=partial(load, parts=parts, names=tuple(names), features=features),
    )  # fmt: skip


def _first(items: Sequence[Item]) -> int:
    """The coordinates of a frame of the first sequence that can be read."""
    reasons = list[Exception]()
    for item in items[:100]:
        try:
            return read_item(item.file, item.row).shape[1]
        except (MereoError, UsageError) as error:
            reasons.append(error)
    raise reasons[0]


def load(wanted: Wanted, parts: dict[str, list[Item]], names: tuple[str, ...], features: int) -> Splits:
    """The splits; sequences that cannot be read, or have other joints than the first, are left out and named."""
    assert wanted.length is not None
    made, unreadable = {}, list[tuple[str, str, str]]()
    for split, items in parts.items():
        chosen = items
        if split == "train" and wanted.limit is not None and wanted.limit < len(items):
            labels = torch.tensor([names.index(item.label) for item in items], dtype=torch.int64)
            chosen = [items[place] for place in stratified(labels, wanted.limit, wanted.seed)[1].tolist()]
        frames, labels_ = list[Tensor](), list[int]()
        for item in chosen:
            try:
                one = read_item(item.file, item.row)
                if one.shape[1] != features:
                    raise UsageError(
                        f"{item.file} has {one.shape[1] // COORDINATES} joints a frame, and other sequences"
                        f" {features // COORDINATES}; leave it out."
                    )
            except (MereoError, UsageError) as error:
                if wanted.strict:
                    raise
                unreadable.append((split, str(item.file), str(error)))
                continue
            frames.append(one)
            labels_.append(names.index(item.label))
        if not frames:
            raise MereoError(f"none of the {len(chosen)} sequences for {split} can be read: {unreadable[-1][2]}")
        made[split] = Sequences.joined(frames, labels_, names, wanted.length)
    return Splits(made["train"], made["validation"], made["test"], names, 1, len(unreadable), tuple(unreadable))


def find_folder(data: str | Path, root: Callable[[], Path]) -> Path | None:
    """The folder of sequences that is meant; None for anything else."""
    path = user_path("data", data)
    return next((place for place in (path, root() / path) if holds_sequences(place)), None)


def to_predict(names: Sequence[str], each: Sequence[Tensor], shape: Sequence[int]) -> Sequences:
    """Sequences without classes for a network that reads (frames, coordinates)."""
    for name, frames in zip(names, each, strict=True):
        if frames.shape[1] != shape[1]:
            raise UsageError(
                f"{name} has {frames.shape[1]} coordinates a frame, and the network reads {shape[1]}; give sequences of"
                " the same joints and bodies."
            )
    return Sequences.joined(each, None, (), shape[0])
