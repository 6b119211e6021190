"""Files of sets of points: .csv, .json and .npz, with or without pointers.

    .csv     columns x and y, a row a point; with a column set, rows of one name are one set
    .json    [[x, y], ...], or a list of such sets, or {"points": sets, "pointers": sequences}
    .npz     points (n, 2) or (sets, n, 2); and maybe lengths (sets,) and pointers (sets, steps), -1 for padding

Pointers of files count points from 0 and have no end.
"""

import csv
import io
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from mereo.data.load import Splits, Wanted
from mereo.data.pointing import Floats, check_points
from mereo.data.points import PADDING, PointSets, padded
from mereo.data.registry import DatasetInfo
from mereo.data.regular import kind_of, open_regular, user_path
from mereo.data.sources import data_root
from mereo.errors import MereoError, UsageError

SUFFIXES = (".csv", ".json", ".npz")
PARTS = 10
"""The number of equal parts: one is for testing, one for choosing the epoch."""


class NamedSets(NamedTuple):
    """Sets of points by name, fitted into the unit square, with their pointers, or None for a file without pointers."""

    names: list[str]
    sets: list[Floats]
    pointers: list[list[int]] | None

    def as_split(self) -> PointSets:
        """The sets, padded to the same number of points."""
        lengths = torch.tensor([len(each) for each in self.sets])
        points = torch.zeros(len(self.sets), int(lengths.max()), 2)
        for row, each in zip(points, self.sets, strict=True):
            row[: len(each)] = torch.from_numpy(each)
        if self.pointers is None:
            return PointSets(points, lengths)
        return PointSets(points, lengths, padded([torch.tensor(each) + 1 for each in self.pointers]))


def read_sets(path: Path) -> NamedSets:
    """The sets of a file.

    A set with points outside of the unit square is moved and scaled into it, the same in both directions, which changes
    neither its hull nor its tour: networks are trained there.

    Raises:
        UsageError: for no points, points that are not finite, too far apart or there twice, lengths that are none,
            pointers to points that are not there, and other files.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path} is not a file of points; give {', '.join(SUFFIXES)}.")
    try:
        with open_regular(path) as file:
            content = file.read()
        names, sets, pointers = _READERS[path.suffix.lower()](content, path.stem)
        sets = [np.asarray(each, np.float64) for each in sets]
    except OSError as error:
        raise MereoError(f"cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, TypeError, KeyError, IndexError) as error:
        if isinstance(error, UsageError):
            raise UsageError(f"{path}: {error}") from error
        raise UsageError(f"{path} is not sets of points as {path.suffix} holds them ({error}).") from error
    if not sets:
        raise UsageError(f"{path} has no points; give at least one set.")
    fitted = []
    for name, each in zip(names, sets, strict=True):
        try:
            check_points(each)
            fitted.append(in_unit_square(each))
        except UsageError as error:
            raise UsageError(f"{path}, set {name}: {error}") from error
    if pointers is not None:
        _check_pointers(path, sets, pointers)
    return NamedSets(names, fitted, pointers)


def _check_pointers(path: Path, sets: Sequence[Floats], pointers: Sequence[Sequence[int]]) -> None:
    if len(pointers) != len(sets):
        raise UsageError(f"{path} has pointers of {len(pointers)} sets, and {len(sets)} sets; give one sequence a set.")
    for number, (points, row) in enumerate(zip(sets, pointers, strict=True)):
        wrong = [each for each in row if not isinstance(each, int) or not 0 <= each < len(points)]
        if wrong:
            raise UsageError(f"{path} points to {wrong[0]} in set {number}, which has points 0 to {len(points) - 1}.")


def in_unit_square(points: Floats) -> Floats:
    """Points as they are if they lie in the unit square, else moved and scaled into it.

    Raises:
        UsageError: for points so far apart that their distance is not finite.
    """
    low, high = points.min(0), points.max(0)
    if low.min() >= 0 and high.max() <= 1:
        return points
    with np.errstate(over="ignore"):
        size = float((high - low).max())
    if not np.isfinite(size):
        raise UsageError(f"points are from {low.min():g} to {high.max():g}, too far apart; give smaller numbers.")
    return (points - low) / (size or 1.0)


_Read = tuple[list[str], list[Any], list[list[int]] | None]


def _read_csv(content: bytes, name: str) -> _Read:
    reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig")))
    if not {"x", "y"} <= set(reader.fieldnames or ()):
        raise UsageError(f"the columns are {', '.join(reader.fieldnames or ['none'])}; x and y are needed.")
    sets: dict[str, list[tuple[float, float]]] = {}
    for row in reader:
        sets.setdefault(row.get("set") or name, []).append((float(row["x"]), float(row["y"])))
    return list(sets), list(sets.values()), None


def _read_json(content: bytes, name: str) -> _Read:
    found = json.loads(content)
    sets, pointers = (found["points"], found.get("pointers")) if isinstance(found, dict) else (found, None)
    if sets and isinstance(sets[0][0], int | float):
        sets = [sets]
    if pointers and isinstance(pointers[0], int):
        pointers = [pointers]
    return _numbered(name, len(sets)), sets, pointers


def _read_npz(content: bytes, name: str) -> _Read:
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
        held = {key: found[key] for key in ("points", "lengths", "pointers") if key in found}
    points = held["points"] if held["points"].ndim == 3 else held["points"][None]
    lengths = held.get("lengths", np.full(len(points), points.shape[1]))
    whole = np.issubdtype(lengths.dtype, np.integer) and lengths.shape == (len(points),)
    if not whole or (wrong := lengths[(lengths < 1) | (lengths > points.shape[1])]).size:
        given = f"hold {wrong[0]}" if whole else f"are {lengths.dtype} of shape {lengths.shape}"
        raise UsageError(
            f"lengths {given}; they must be {len(points)} whole numbers from 1 to {points.shape[1]}, the points of each"
            " set."
        )
    rows = held.get("pointers")
    pointers = None if rows is None else [[each for each in row if each != PADDING] for row in rows.tolist()]
    return _numbered(name, len(points)), [row[:n] for row, n in zip(points, lengths, strict=True)], pointers


def _numbered(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}-{number}" for number in range(count)]


_READERS = {".csv": _read_csv, ".json": _read_json, ".npz": _read_npz}


def load(wanted: Wanted, sets: PointSets) -> Splits:
    """The splits of one file, in order: the last tenth is for testing, the one before it for choosing the epoch."""
    held = len(sets) // PARTS
    places = torch.arange(len(sets))
    train = places[: len(sets) - 2 * held][: wanted.limit]
    validation, test = places[len(sets) - 2 * held : len(sets) - held], places[len(sets) - held :]
    return Splits(sets.subset(train), sets.subset(validation), sets.subset(test), (), 2, 0)


def path_info(data: str, root: str | Path | None = None) -> DatasetInfo:
    """Facts about a file of sets with pointers."""
    path = user_path("data", data)
    place = next((each for each in (path, data_root(root) / path) if kind_of(each) == "file"), None)
    if place is None:
        raise UsageError(f"data is {data!r}, and there is no such data set or file; give convex_hull or a file.")
    found = read_sets(place)
    if found.pointers is None or len(found.sets) < PARTS:
        what = "without pointers" if found.pointers is None else f"of {len(found.sets)} sets"
        raise UsageError(f"data is {data!r}, {what}; a training needs at least {PARTS} sets with pointers.")
    sets = found.as_split()
    held = len(sets) // PARTS
    counts = {"train": len(sets) - 2 * held, "validation": held, "test": held}
    return DatasetInfo(
        data, "sets of points with pointers", str(place), 0, 2, None, counts, (),
        fields=("points", "lengths", "pointers"), path=place, load=partial(load, sets=sets),
    )  # fmt: skip
