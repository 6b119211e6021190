"""An index of the samples in a tar file, made once and kept, so that any image is read with one seek.

A sample is the members of one key, the path up to the first dot of the file's name: `key.jpg` with `key.cls` or
`key.json`, as in WebDataset. The `webdataset` library only reads such files in sequence, so it is not used here.
"""

import contextlib
import hashlib
import io
import json
import math
import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mereo.data.stream.labels import LONGEST_LABEL
from mereo.errors import MereoError, UsageError
from mereo.files import write_atomically

IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm")
LABELS = ("cls", "json")
MASK = "mask."
"""Before the suffix of a mask: `key.mask.png`."""
_LABEL_FIELDS = ("label", "cls", "class")
_LARGEST_LABEL, _LARGEST_IMAGE, _LARGEST_HEADER = 2**20, 2**30, 2**20
_VERSION = 2


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

    Shapes: offsets int64 (n,), sizes int64 (n,), labels int64 or str (n,), mask_offsets and mask_sizes int64 (n,) or
    (0,).
    """

    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    labels: npt.NDArray[Any]
    mask_offsets: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    mask_sizes: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)


def _cache_path(tar: Path) -> Path:
    """The path of the index in the user's cache, for this version of the file."""
    state = tar.stat()
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = hashlib.sha256(f"{tar.resolve()}\n{state.st_size}\n{state.st_mtime_ns}".encode()).hexdigest()
    return base / "mereo" / "tar_indices" / f"{key[:32]}.npz"


def index_path(tar: Path) -> Path:
    """The path of the index next to the file, where `write_shards` writes it."""
    return tar.with_name(f"{tar.name}.index.npz")


def pack(index: TarIndex, size: int) -> bytes:
    """The index of a tar file of that size as the content of an .npz file."""
    content = io.BytesIO()
    np.savez(content, version=np.array(_VERSION), size=np.array(size), **index._asdict())
    return content.getvalue()


def _unpack(path: Path, size: int) -> TarIndex | None:
    """The index that `pack` wrote; None if it is missing, damaged or of another file."""
    try:
        content = io.BytesIO(path.read_bytes())
        with zipfile.ZipFile(content) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                return None  # not written here; unpacked it may have any size
        with np.load(content, allow_pickle=False) as arrays:
            if int(arrays["version"]) != _VERSION or int(arrays["size"]) != size:
                return None
            index = TarIndex(*(arrays[name] for name in TarIndex._fields))
    except Exception:  # a damaged archive makes NumPy raise nearly anything
        return None
    masked = len(index.mask_offsets) > 0
    counts = {array.shape for array in (index if masked else index[:3])}
    flat = len(counts) == 1 and index.offsets.ndim == 1 and len(index.offsets) > 0
    whole = index.offsets.dtype == index.sizes.dtype == np.int64 and index.labels.dtype.kind in "iU"
    if not flat or not whole:
        return None
    # Not the sum of offset and size, which can overflow.
    largest = min(size, _LARGEST_IMAGE)
    for sizes, offsets in ((index.sizes, index.offsets), (index.mask_sizes, index.mask_offsets)):
        if not sizes.dtype == offsets.dtype == np.int64 or sizes.shape != offsets.shape:
            return None
        inside = (sizes >= 0) & (sizes <= largest) & (offsets >= 0) & (offsets <= size - sizes.clip(0, size))
        if not inside.all():
            return None
    return index


def read_index(tar: Path) -> TarIndex:
    """The index next to a tar file or in the user's cache, or else made from the file's headers and saved."""
    size = tar.stat().st_size
    cached = _cache_path(tar)
    for path in (index_path(tar), cached):
        index = _unpack(path, size)
        if index is not None:
            return index
    index = make_index(tar)
    with contextlib.suppress(MereoError):  # without a cache the index is made again next time
        write_atomically(cached, pack(index, size))
    return index


def make_index(tar: Path) -> TarIndex:
    """Read the headers of all members, and the labels."""
    images: dict[str, tuple[int, int]] = {}
    masks: dict[str, tuple[int, int]] = {}
    labels: dict[str, int | str] = {}
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
                    labels[key] = _label(tar, member.name, extension, content.read())
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
        labels = dict.fromkeys(images, 0)
    bare = [key for key in images if key not in labels]
    if bare or not images:
        what = f"no .cls or .json for the image {bare[0]!r}" if bare else f"no image ({', '.join(IMAGES)})"
        folder = " If it is a packed folder <class>/<images>, unpack it and give the folder." if not labels else ""
        raise UsageError(f"{tar} holds {what}; a sample is key.jpg with key.cls or key.json, or key.{MASK}png.{folder}")
    values = [labels[key] for key in images]
    numeric = all(isinstance(value, int) for value in values)
    places = np.array(list(images.values()), dtype=np.int64)
    of_masks = np.array([masks[key] for key in images] if masks else np.zeros((0, 2)), dtype=np.int64)
    return TarIndex(
        places[:, 0].copy(), places[:, 1].copy(), np.array(values, dtype=np.int64 if numeric else np.str_),
        of_masks[:, 0].copy(), of_masks[:, 1].copy(),
    )  # fmt: skip


def _label(tar: Path, member: str, extension: str, content: bytes) -> int | str:
    try:
        text = content.decode().strip()
        value = text if extension == "cls" else json.loads(text)
        if isinstance(value, dict):
            value = next(value[name] for name in _LABEL_FIELDS if name in value)
        if isinstance(value, str) and value.lstrip("-").isdecimal():
            value = int(value)
    except (ValueError, StopIteration, RecursionError):
        value = None
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        raise UsageError(f"{member} in {tar} has no label; it must be a number or a name.")
    if isinstance(value, int) and abs(value) >= 2**31:
        raise UsageError(f"{member} in {tar} holds the label {str(value)[:20]}, which is too large.")
    if isinstance(value, str) and len(value) > LONGEST_LABEL:
        raise UsageError(f"{member} in {tar} holds a label of {len(value):,} characters; give {LONGEST_LABEL} at most.")
    return value
