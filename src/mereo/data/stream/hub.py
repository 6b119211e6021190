"""Datasets of the Hugging Face hub, by `hf:owner/name` or `hf:owner/name:configuration`."""

import re
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from mereo.data.encoded import Store
from mereo.data.layout_options import LayoutOptions
from mereo.data.names import SPLITS
from mereo.data.raw import RawDataset
from mereo.data.stream.labels import Part, make_dataset
from mereo.data.stream.tables import IMAGE_COLUMNS, LABEL_COLUMNS, content_of, find_column
from mereo.data.targets import TASKS
from mereo.errors import MereoError, UsageError

PREFIX = "hf:"
_NAME, _LONGEST = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII), 200


class HubStore(Store):
    """The rows of one split, memory-mapped by `datasets` from its cache."""

    def __init__(self, rows: Any, image: str, what: str) -> None:
        self._rows, self._image, self._what = rows, image, what

    def open(self, number: int) -> BinaryIO:
        return content_of(self._rows[number][self._image], Path())

    def name(self, number: int) -> str:
        return f"row {number} of {self._what}"


def open_hub(data: str, *, evaluation: bool = False, options: LayoutOptions | None = None) -> RawDataset:
    """A dataset of the hub; `datasets` fetches it once and keeps it in its own cache."""
    name, _, configuration = data.removeprefix(PREFIX).partition(":")
    if not _NAME.fullmatch(name) or ".." in name or len(data) > _LONGEST:
        raise UsageError(f"data is {data[:80]!r}; after hf: there must be owner/name or owner/name:configuration.")
    if Path(name).exists():  # `datasets` would take it for that
        raise UsageError(f"data is {data!r}, and {name!r} is a file or folder here; name it without hf:.")
    try:
        import datasets
    except ImportError:
        raise MereoError(f"data is {data!r}, which needs datasets: pip install 'mereo[stream]'") from None
    try:
        splits = datasets.load_dataset(name, configuration or None)
    except Exception as error:  # no network, unknown name, gated access: every layer below raises its own type
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200].rstrip(".")
        raise MereoError(
            f"data is {data!r}, which could not be loaded ({reason}); check the name and the network, or give the"
            " path of its Parquet files."
        ) from error
    return from_splits(splits, data, evaluation=evaluation, options=options or LayoutOptions())


def from_splits(splits: Any, data: str, *, evaluation: bool, options: LayoutOptions) -> RawDataset:
    """The splits for training from a `datasets.DatasetDict`: images with one label each."""
    from datasets import ClassLabel, Image

    given = [name.lower() for name in options.label_column]
    other = len(options.label_column) > 1 or options.stated_task in ("segmentation", *TASKS)
    remedy = "save it as Parquet (to_parquet of its rows) and give the file"
    if other:
        raise UsageError(f"data is {data!r}, of which one label an image is read, and no masks or numbers; {remedy}.")
    parts: dict[str, Part] = {}
    names = None
    for split, rows in splits.items():
        known = SPLITS.get(split.lower())
        if known is None or known in parts:
            continue
        image = find_column(rows.column_names, IMAGE_COLUMNS, "images", data)
        label = find_column(rows.column_names, given or LABEL_COLUMNS, "labels", data)
        feature = rows.features[label]
        if isinstance(feature, ClassLabel):
            names = list(feature.names)
        encoded = rows.select_columns([image]).cast_column(image, Image(decode=False))
        values = np.asarray(rows.with_format("numpy")[label][:])
        plain = values.ndim == 1 and all(isinstance(value, str | int) for value in values.tolist())
        if not plain or values.dtype.kind not in "iuUO":
            raise UsageError(f"data is {data!r}, whose {label!r} holds {values.dtype} or lists, no classes; {remedy}.")
        values = values.astype(np.str_ if values.dtype.kind in "UO" else np.int64)
        parts[known] = Part(
            HubStore(encoded, image, f"{data} {split}"), torch.arange(len(rows)), values, columns=(label,)
        )
    return make_dataset(parts, names, data, evaluation=evaluation, options=options)
