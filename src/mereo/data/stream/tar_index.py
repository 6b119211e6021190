"""An index of the samples in a tar file, made once and kept, so that any image is read with one seek.

A sample is the members of one key, the path up to the first dot of the file's name: `key.jpg` with `key.cls` or
`key.json`, as in WebDataset. The .cls, or "label" in the .json, is a class, or a number; a list in the .json is of
several labels, and "values" are numbers by name. The `webdataset` library only reads such files in sequence, so it is
not used here.
"""

import contextlib
import hashlib
import io
import json
import math
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mereo.data.stream.labels import LISTED, LONGEST_LABEL
from mereo.errors import MereoError, UsageError
from mereo.files import write_atomically

IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm")
LABELS = ("cls", "json")
MASK = "mask."
"""Before the suffix of a mask: `key.mask.png`."""
_LABEL_FIELDS, _NUMBERS = ("label", "cls", "class", "labels"), "values"
"""Fields of a .json with a label, a list of labels or a number; and the one with several numbers by name."""
_LARGEST_LABEL, _LARGEST_IMAGE, _LARGEST_HEADER = 2**20, 2**30, 2**20
_VERSION = 4


class _Header(tarfile.TarInfo):
    """A header whose numbers cannot send the reader back, into a loop without end, or fill the memory."""

    def _check(self, count: int, largest: float = math.inf) -> None:
        if not 0 <= count <= largest:
            raise tarfile.ReadError(f"a header gives a size of {count:,} bytes")

    def _block(self, count: int) -> int:
        self._check(count)
        return int(super()._block(count))  # type: ignore[misc]

    def _proc_gnulong(self, archive: tarfile.TarFile) -> Any:
        self._check(self.size, _LARGEST_HEADER)
        return super()._proc_gnulong(archive)  # type: ignore[misc]

    def _proc_pax(self, archive: tarfile.TarFile) -> Any:
        self._check(self.size, _LARGEST_HEADER)
        return super()._proc_pax(archive)  # type: ignore[misc]


def _check_end(archive: tarfile.TarFile) -> None:
    """`tarfile` takes a damaged header for the end of the archive, which ends with zeros or with the file."""
    assert archive.fileobj is not None
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
        raise tarfile.ReadError(f"the header at byte {archive.offset:,} is damaged")


class TarIndex(NamedTuple):
    """The n samples of one tar file: offset and size of each image in bytes, its label, a number or a text; and offset
    and size of its mask, if all images have one.

    Attributes:
        columns: the names of the fields of the labels.
        listed: has one entry if labels are lists of labels.

    Shapes: offsets int64 (n,), sizes int64 (n,), labels int64 or str (n,), or str (n, columns), or (0,) for masks
    without labels; mask_offsets and mask_sizes int64 (n,) or (0,).
    """

    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    labels: npt.NDArray[Any]
    mask_offsets: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    mask_sizes: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    columns: npt.NDArray[Any] = np.array(["label"])
    listed: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)


class _Cells(NamedTuple):
    """A label that is a list of labels, one text, or several numbers or texts by name."""

    columns: tuple[str, ...]
    cells: tuple[str, ...]
    listed: bool = False


def _kept(tar: Path, columns: tuple[str, ...]) -> Path:
    """The place of the index in the user's cache, for this version of the file."""
    state = tar.stat()
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    facts = (_VERSION, tar.resolve(), state.st_size, state.st_mtime_ns, *columns)
    key = hashlib.sha256("\n".join(map(str, facts)).encode()).hexdigest()
    return base / "mereo" / "tar_indices" / f"{key[:32]}.npz"


def read_index(tar: Path, columns: tuple[str, ...] = ()) -> TarIndex:
    """The index in the user's cache, or else made from the file's headers and kept there.

    Args:
        tar: the file.
        columns: the fields of the labels in .json, if they are stated.
    """
    kept, content = _kept(tar, columns), io.BytesIO()
    # Of a damaged file NumPy raises nearly anything.
    with contextlib.suppress(Exception), np.load(kept, allow_pickle=False) as arrays:
        return TarIndex(**arrays)
    index = make_index(tar, columns)
    np.savez(content, **index._asdict())
    with contextlib.suppress(MereoError):  # without a cache the index is made again next time
        write_atomically(kept, content.getvalue())
    return index


def make_index(tar: Path, columns: tuple[str, ...] = ()) -> TarIndex:
    """Read the headers of all members, and the labels."""
    images: dict[str, tuple[int, int]] = {}
    masks: dict[str, tuple[int, int]] = {}
    labels: dict[str, int | str | _Cells] = {}
    try:
        with tarfile.open(tar, "r:", tarinfo=_Header) as archive:
            for member in archive:
                folder, slash, file = member.name.rpartition("/")
                stem, _, extension = file.partition(".")
                extension, key = extension.lower(), f"{folder}{slash}{stem}"
                if not member.isreg() or member.issparse() or file.startswith("."):
                    continue
                if extension in IMAGES and member.size <= _LARGEST_IMAGE:
                    if key in images:
                        raise MereoError(f"{tar} has two images with the key {key!r}; give each its own key.")
                    images[key] = member.offset_data, member.size
                elif extension.removeprefix(MASK) in IMAGES and extension.startswith(MASK):
                    masks[key] = member.offset_data, min(member.size, _LARGEST_IMAGE)
                elif extension in LABELS and key not in labels and member.size <= _LARGEST_LABEL:
                    content = archive.extractfile(member)
                    assert content is not None
                    labels[key] = _label(tar, member.name, extension, content.read(), columns)
            _check_end(archive)
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        remedy = "decompress it" if tar.suffix != ".tar" else "download or create it again"
        raise MereoError(f"the tar file {tar} cannot be read ({error}); {remedy}.") from error
    if masks:
        alone = next((key for key in images if key not in masks), None)
        if alone is not None:
            raise UsageError(f"{tar} has no mask for the image {alone!r}, and others have; add {alone}.{MASK}png.")
        if any(key not in labels for key in images):
            labels = {}
    bare = [] if masks else [key for key in images if key not in labels]
    if bare or not images:
        what = f"no .cls or .json for the image {bare[0]!r}" if bare else f"no image ({', '.join(IMAGES)})"
        folder = " If it is a packed folder <class>/<images>, unpack it and give the folder." if not labels else ""
        raise UsageError(f"{tar} holds {what}; a sample is key.jpg with key.cls or key.json, or key.{MASK}png.{folder}")
    values, named, listed = _alike(tar, [labels[key] for key in images] if labels else [])
    places = np.array(list(images.values()), dtype=np.int64)
    of_masks = np.array([masks[key] for key in images] if masks else np.zeros((0, 2)), dtype=np.int64)
    return TarIndex(
        places[:, 0].copy(), places[:, 1].copy(), values, of_masks[:, 0].copy(), of_masks[:, 1].copy(), np.array(named),
        np.zeros(int(listed), dtype=np.int64),
    )  # fmt: skip


def _alike(tar: Path, labels: Sequence[int | str | _Cells]) -> tuple[npt.NDArray[Any], tuple[str, ...], bool]:
    """Labels as one array, the names of its columns, and whether they are lists; UsageError for labels of two forms."""
    forms = {(label.columns, label.listed) if isinstance(label, _Cells) else None for label in labels}
    if len(forms) > 1:
        raise UsageError(f"{tar} has labels of different forms: a list, or fields, for some images only; use one form.")
    form = next(iter(forms), None)
    if form is None:
        numeric = all(isinstance(label, int) for label in labels)
        return np.array(labels, dtype=np.int64 if numeric else np.str_), ("label",), False
    cells = [label.cells for label in labels if isinstance(label, _Cells)]
    array = np.array(cells, dtype=np.str_)
    return (array[:, 0] if len(form[0]) == 1 else array), *form


def _label(tar: Path, member: str, extension: str, content: bytes, columns: tuple[str, ...] = ()) -> int | str | _Cells:
    try:
        text = content.decode().strip()
        value = text if extension == "cls" else json.loads(text)
        if isinstance(value, dict):
            found = _fields(tar, member, value, columns)
            if found is not None:
                return found
            value = next(value[name] for name in (columns or _LABEL_FIELDS) if name in value)
        if isinstance(value, list) and all(_is_a_label(each) for each in value):
            return _Cells(("labels",), (_short(tar, member, LISTED.join(map(str, value))),), listed=True)
        if isinstance(value, str) and value.lstrip("-").isdecimal():
            value = int(value)
        if isinstance(value, float):
            value = str(value)
    except UsageError:
        raise
    except StopIteration:
        held = ", ".join(map(str, value))[:200] or "none"
        raise UsageError(
            f"{member} in {tar} has no field 'label' (its fields: {held}); name those to learn as --label-column."
        ) from None
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        raise UsageError(f"{member} in {tar} has no label; it must be a number or a name.")
    if isinstance(value, int) and abs(value) >= 2**31:
        raise UsageError(f"{member} in {tar} holds the label {str(value)[:20]}, which is too large.")
    return _short(tar, member, value) if isinstance(value, str) else value


def _short(tar: Path, member: str, label: str) -> str:
    if len(label) > LONGEST_LABEL:
        raise UsageError(f"{member} in {tar} holds a label of {len(label):,} characters; give {LONGEST_LABEL} at most.")
    return label


def _is_a_label(value: Any) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool) and LISTED not in str(value)


def _fields(tar: Path, member: str, value: dict[str, Any], columns: tuple[str, ...]) -> _Cells | None:
    """The cells of the fields that are stated, or of all in "values"; None for one field, or without any."""
    inside = value.get(_NUMBERS)
    inside = inside if isinstance(inside, dict) else {}
    names = columns or (() if any(name in value for name in _LABEL_FIELDS) else tuple(map(str, inside)))
    if not names or (len(names) == 1 and names[0] not in inside):
        return None
    both = {**inside, **value}
    lacking = next((name for name in names if name not in both), None)
    if lacking is not None:
        raise UsageError(f"{member} in {tar} has no field {lacking!r}; it has {', '.join(map(str, both))[:200]}.")
    wrong = next((name for name in names if not isinstance(both[name], int | float | str | None)), None)
    if wrong is not None:
        raise UsageError(f"{member} in {tar} has {type(both[wrong]).__name__} as {wrong!r}; give a number or a text.")
    cells = ("" if both[name] is None else _short(tar, member, str(both[name])) for name in names)
    return _Cells(names, tuple(cells))
