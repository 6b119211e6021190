"""Images in the rows of Parquet and Arrow files, as Hugging Face `datasets` writes them.

Arrow files are memory-mapped, so any row is quickly read. Parquet is read in groups of rows; the last few groups are
kept.
"""

import importlib.util
import io
import json
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from mereo.data.encoded import Store
from mereo.data.regular import open_regular
from mereo.data.stream.labels import LONGEST_LABEL, Labels
from mereo.errors import MereoError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

IMAGE_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "webp", "picture", "image_bytes", "bytes")
LABEL_COLUMNS = ("label", "labels", "cls", "class", "target", "category", "class_name", "label_name", "fine_label")
MASK_COLUMNS = ("mask", "segmentation", "annotation", "segmentation_mask")
_KEPT_BYTES = 2**29
"""Number of Parquet row groups that each process keeps."""


def find_column(columns: Sequence[str], known: Sequence[str], what: str, where: object) -> str:
    """The column with a usual name, in any case; UsageError if there is none."""
    plain = {name.lower(): name for name in reversed(columns)}
    for name in known:
        if name in plain:
            return plain[name]
    raise UsageError(
        f"{where} has no column of {what}; it has {', '.join(columns)}. Rename that column to {known[0]!r} (or"
        f" {', '.join(map(repr, known[1:]))})."
    )


def content_of(value: Any, folder: Path) -> BinaryIO:
    """The encoded bytes of a cell: bytes, or {bytes, path} with either of them."""
    if isinstance(value, dict):
        content, path = value.get("bytes"), value.get("path")
        if content is None and isinstance(path, str):
            return open_regular(folder / path)
        value = content
    if not isinstance(value, bytes):
        raise OSError(f"the cell holds {type(value).__name__}, not the bytes of an image")
    return io.BytesIO(value)


class _File(ABC):
    """One table; its image and label columns are found by name."""

    def __init__(self, path: Path, schema: "pa.Schema", rows: int) -> None:
        self.path, self.schema, self.rows = path, schema, rows
        self.image = find_column(schema.names, IMAGE_COLUMNS, "images", path)
        masks = [name for name in schema.names if name.lower() in MASK_COLUMNS]
        self.mask = masks[0] if masks else None
        # Labels of images with masks are not read.
        self.label = "" if masks else find_column(schema.names, LABEL_COLUMNS, "labels", path)

    @abstractmethod
    def labels(self) -> Any:
        """The label column, an Arrow array of chunks."""

    @property
    def encoded(self) -> tuple[str, ...]:
        """The columns of images and of masks."""
        return (self.image,) if self.mask is None else (self.image, self.mask)

    @abstractmethod
    def cell(self, row: int, column: str) -> Any:
        """The image or mask of a row, as Arrow gives it to Python; may be called from several threads."""

    def group(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The part that is read at once for each row."""
        return np.zeros_like(rows)


class _ArrowFile(_File):
    """An Arrow IPC file or stream, mapped into memory."""

    def __init__(self, path: Path) -> None:
        from pyarrow import ArrowInvalid, ipc, memory_map

        mapped = memory_map(str(path))
        try:
            table = ipc.open_file(mapped).read_all()
        except ArrowInvalid:
            mapped.seek(0)
            table = ipc.open_stream(mapped).read_all()
        super().__init__(path, table.schema, table.num_rows)
        # Arrow trusts offsets between buffers, and ends the process on a wrong one.
        for name in {*self.encoded, *([self.label] if self.label else [])}:
            table.column(name).validate(full=True)
        self._table = table
        self._starts = np.cumsum([0, *(len(chunk) for chunk in table.column(self.image).chunks)])

    def labels(self) -> Any:
        return self._table.column(self.label)

    def cell(self, row: int, column: str) -> Any:
        chunk = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._table.column(column).chunk(chunk)[row - int(self._starts[chunk])].as_py()


class _ParquetFile(_File):
    """A Parquet file, read a group of rows at a time."""

    kept: OrderedDict[tuple[Path, int, str], Any] = OrderedDict()  # noqa: RUF012 - one for the process
    lock = threading.Lock()

    def __init__(self, path: Path) -> None:
        from pyarrow.parquet import ParquetFile

        self._file = ParquetFile(path, memory_map=True)
        self._reading = threading.Lock()
        about = self._file.metadata
        if about.num_rows > path.stat().st_size:  # a few bytes can stand for any number of equal rows
            raise MereoError(f"it claims {about.num_rows:,} rows, more than it has bytes")
        super().__init__(path, self._file.schema_arrow, about.num_rows)
        self._starts = np.cumsum([0, *(about.row_group(i).num_rows for i in range(about.num_row_groups))])

    def labels(self) -> Any:
        return self._file.read(columns=[self.label]).column(self.label)

    def group(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.searchsorted(self._starts, rows, side="right") - 1

    def cell(self, row: int, column: str) -> Any:
        group = int(self.group(np.array(row)))
        return self._group(group, column)[row - int(self._starts[group])].as_py()

    def _group(self, group: int, name: str) -> Any:
        key, kept = (self.path, group, name), _ParquetFile.kept
        with self._reading:  # several threads want the same group; one reads it
            with _ParquetFile.lock:
                if key in kept:
                    kept.move_to_end(key)
                    return kept[key]
            column = self._file.read_row_group(group, columns=[name]).column(name).combine_chunks()
            with _ParquetFile.lock:
                kept[key] = column
                while len(kept) > 1 and sum(part.nbytes for part in kept.values()) > _KEPT_BYTES:
                    kept.popitem(last=False)
            return column


def open_table(path: Path) -> _File:
    """One file, by its suffix; MereoError for one that cannot be read."""
    if importlib.util.find_spec("pyarrow") is None:
        raise MereoError(f"reading {path} needs pyarrow, which is not installed: pip install 'mereo[stream]'")
    with _reading(path):
        return _ParquetFile(path) if path.suffix == ".parquet" else _ArrowFile(path)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """MereoError for whatever Arrow raises of a damaged file."""
    try:
        yield
    except (UsageError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise MereoError(f"the table {path} cannot be read ({reason}); download or create it again.") from error


def read_labels(file: _File) -> Labels:
    """The labels of a table, numbers or names."""
    with _reading(file.path):
        column = file.labels()
        empty = column.null_count
        cells = column.to_pylist() if column.num_chunks else []
    if not cells:
        raise UsageError(f"{file.path} has no rows; remove it or name others.")
    if empty:
        raise UsageError(f"{file.path} has rows without a label in the column {file.label!r}; take them out.")
    if any(isinstance(cell, str) and len(cell) > LONGEST_LABEL for cell in cells):
        raise UsageError(f"{file.path} has labels of more than {LONGEST_LABEL} characters in {file.label!r}; cut them.")
    try:
        values = np.asarray(cells)
    except (ValueError, OverflowError):  # lists of several lengths, numbers beyond all types
        values = np.empty(0, dtype=object)
    if values.dtype.kind not in "iuU" or values.ndim != 1:
        raise UsageError(f"{file.path} has labels of kind {column.type} in {file.label!r}; they must be whole or text.")
    return values if values.dtype.kind == "U" else values.astype(np.int64)


def class_names(file: _File) -> list[str] | None:
    """The names that Hugging Face `datasets` wrote for the labels, if it did."""
    try:
        features = json.loads((file.schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[file.label]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return [str(name) for name in names] if isinstance(names, list) else None


class TableStore(Store):
    """The images of several tables, or with `masks` their masks, one table after the other."""

    def __init__(self, files: Sequence[_File], *, masks: bool = False) -> None:
        self._files, self._masks = list(files), masks
        self.sequential = any(isinstance(file, _ParquetFile) for file in files)
        self._starts = np.cumsum([0, *(file.rows for file in files)])

    def open(self, number: int) -> BinaryIO:
        file, row = self._place(number)
        column = file.mask if self._masks else file.image
        if column is None:
            raise OSError("its table has no column of masks")
        return content_of(file.cell(row, column), file.path.parent)

    def name(self, number: int) -> str:
        file, row = self._place(number)
        return f"row {row} of {file.path}"

    def groups(self, numbers: Tensor) -> Tensor:
        values = numbers.numpy()
        tables = np.searchsorted(self._starts, values, side="right") - 1
        groups = np.zeros_like(values)
        for place, file in enumerate(self._files):
            here = tables == place
            groups[here] = file.group(values[here] - self._starts[place])
        return torch.from_numpy(tables * (int(groups.max(initial=0)) + 1) + groups)

    def _place(self, number: int) -> tuple[_File, int]:
        place = int(np.searchsorted(self._starts, number, side="right")) - 1
        return self._files[place], number - int(self._starts[place])
