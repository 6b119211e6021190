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
from mereo.data.layout_options import LayoutOptions
from mereo.data.regular import open_regular
from mereo.data.stream.labels import LISTED, LONGEST_LABEL, Labels, wants_masks
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
    """One table; its image and label columns are found by name, or stated."""

    def __init__(self, path: Path, schema: "pa.Schema", rows: int, options: LayoutOptions) -> None:
        self.path, self.schema, self.rows = path, schema, rows
        self.image = find_column(schema.names, IMAGE_COLUMNS, "images", path)
        masks = [name for name in schema.names if name.lower() in MASK_COLUMNS and _holds_images(schema, name)]
        self.mask = masks[0] if masks and wants_masks(options) else None
        lacking = next((name for name in options.label_column if name not in schema.names), None)
        if lacking is not None:
            raise UsageError(f"label_column is {lacking!r}, and the columns of {path} are {', '.join(schema.names)}.")
        # Labels of images with masks are not read.
        self.columns = options.label_column
        if self.mask is None and not self.columns:
            self.columns = (find_column(schema.names, LABEL_COLUMNS, "labels", path),)

    @abstractmethod
    def column(self, name: str) -> Any:
        """A column, an Arrow array of chunks."""

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

    def __init__(self, path: Path, options: LayoutOptions) -> None:
        from pyarrow import ArrowInvalid, ipc, memory_map

        mapped = memory_map(str(path))
        try:
            table = ipc.open_file(mapped).read_all()
        except ArrowInvalid:
            mapped.seek(0)
            table = ipc.open_stream(mapped).read_all()
        super().__init__(path, table.schema, table.num_rows, options)
        # Arrow trusts offsets between buffers, and ends the process on a wrong one.
        for name in {*self.encoded, *self.columns}:
            table.column(name).validate(full=True)
        self._table = table
        self._starts = np.cumsum([0, *(len(chunk) for chunk in table.column(self.image).chunks)])

    def column(self, name: str) -> Any:
        return self._table.column(name)

    def cell(self, row: int, column: str) -> Any:
        chunk = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._table.column(column).chunk(chunk)[row - int(self._starts[chunk])].as_py()


class _ParquetFile(_File):
    """A Parquet file, read a group of rows at a time."""

    kept: OrderedDict[tuple[Path, int, str], Any] = OrderedDict()  # noqa: RUF012 - one for the process
    lock = threading.Lock()

    def __init__(self, path: Path, options: LayoutOptions) -> None:
        from pyarrow.parquet import ParquetFile

        self._file = ParquetFile(path, memory_map=True)
        self._reading = threading.Lock()
        about = self._file.metadata
        if about.num_rows > path.stat().st_size:  # a few bytes can stand for any number of equal rows
            raise MereoError(f"it claims {about.num_rows:,} rows, more than it has bytes")
        super().__init__(path, self._file.schema_arrow, about.num_rows, options)
        self._starts = np.cumsum([0, *(about.row_group(i).num_rows for i in range(about.num_row_groups))])

    def column(self, name: str) -> Any:
        return self._file.read(columns=[name]).column(name)

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


def open_table(path: Path, options: LayoutOptions) -> _File:
    """One file, by its suffix; MereoError for one that cannot be read."""
    if importlib.util.find_spec("pyarrow") is None:
        raise MereoError(f"reading {path} needs pyarrow, which is not installed: pip install 'mereo[stream]'")
    with _reading(path):
        return (_ParquetFile if path.suffix == ".parquet" else _ArrowFile)(path, options)


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


def _holds_images(schema: "pa.Schema", name: str) -> bool:
    """Whether a column may hold images: bytes, or {bytes, path}."""
    from pyarrow import types

    kind = schema.field(name).type
    return types.is_binary(kind) or types.is_large_binary(kind) or types.is_struct(kind)


def has_lists(file: _File) -> bool:
    """Whether the labels of a table are lists of labels."""
    from pyarrow import types

    kind = file.schema.field(file.columns[0]).type
    return len(file.columns) == 1 and (types.is_list(kind) or types.is_large_list(kind))


def read_labels(file: _File) -> Labels:
    """The labels of a table: whole numbers, or names; a list of them is one text, and several columns are texts.

    An empty cell of fractions, of a list or of several columns is an empty text.
    """
    if not file.rows:
        raise UsageError(f"{file.path} has no rows; remove it or name others.")
    columns = [_labels_of(file, name) for name in file.columns]
    return columns[0] if len(columns) == 1 else np.stack([column.astype(np.str_) for column in columns], 1)


def _labels_of(file: _File, name: str) -> Labels:
    """The labels in one column."""
    with _reading(file.path):
        column = file.column(name)
        cells = column.to_pylist()
    single = len(file.columns) == 1
    refusal = UsageError(
        f"{file.path} has labels of kind {column.type} in {name!r}; they must be numbers, text, or lists of text."
        " Several numbers of an image need a column each, given as --label-column."
    )
    if single and has_lists(file):
        names = class_names(file)
        entries = [[_entry(each, names) for each in cell or ()] for cell in cells]
        if any(entry is None for each in entries for entry in each):
            raise refusal
        cells = [LISTED.join(map(str, each)) for each in entries]
    elif any(isinstance(cell, float) for cell in cells) or (not single and all(map(_is_plain, cells))):
        cells = ["" if cell is None else str(cell) for cell in cells]
    if any(cell is None for cell in cells):
        raise UsageError(f"{file.path} has rows without a label in the column {name!r}; take them out.")
    if any(isinstance(cell, str) and len(cell) > LONGEST_LABEL for cell in cells):
        raise UsageError(f"{file.path} has labels of more than {LONGEST_LABEL} characters in {name!r}; cut them.")
    try:
        values = np.asarray(cells)
    except (ValueError, OverflowError):  # lists of several lengths, numbers beyond all types
        values = np.empty(0, dtype=object)
    if values.dtype.kind not in "iuU" or values.ndim != 1:
        raise refusal
    return values if values.dtype.kind == "U" else values.astype(np.int64)


def _is_plain(cell: Any) -> bool:
    return cell is None or isinstance(cell, bool | int | float | str)


def _entry(value: Any, names: Sequence[str] | None) -> str | None:
    """A label of a list, by its name; None for what is no label."""
    if isinstance(value, int) and not isinstance(value, bool) and names is not None and 0 <= value < len(names):
        value = names[value]
    fits = isinstance(value, str | int) and not isinstance(value, bool) and LISTED not in str(value)
    return str(value) if fits else None


def class_names(file: _File) -> list[str] | None:
    """The names that Hugging Face `datasets` wrote for the labels, if it did."""
    try:
        features = json.loads((file.schema.metadata or {})[b"huggingface"])["info"]["features"]
        feature = features[file.columns[0]]
        feature = feature[0] if isinstance(feature, list) else feature.get("feature", feature)
        names = feature["names"]
    except (KeyError, IndexError, AttributeError, TypeError, ValueError, RecursionError):
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
