"""Data sets by name and by path: which exist, where they are read from, and facts that need no reading."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from mereo.data.characters import AUGMENT as SIGNS_AUGMENT
from mereo.data.characters import are_signs
from mereo.data.files import sniff
from mereo.data.folder import finish_splits, own_splits
from mereo.data.layout import read_layout
from mereo.data.layout_options import LayoutOptions
from mereo.data.names import ARCHIVES, LISTS, is_table
from mereo.data.raw import RawDataset
from mereo.data.registry import DEFAULT_AUGMENT, DatasetInfo
from mereo.data.regular import kind_of, user_path
from mereo.data.sets import DATASETS, find_dataset
from mereo.data.stream import is_stream, open_stream
from mereo.errors import UsageError, unknown

FILE_TYPES = (".zip", *LISTS)
_SHOWN = 5


def data_root(root: str | Path | None = None) -> Path:
    """The folder of data sets: `root`, else the environment variable MEREO_DATA, else the folder data."""
    if root:
        return user_path("data_root", root)
    return user_path("MEREO_DATA", os.environ.get("MEREO_DATA") or "data")


def _find_path(data: str | Path, root: str | Path | None) -> Path:
    """The folder, archive or table at a path, relative to the working folder or else to the root."""
    text, path = str(data), user_path("data", data)
    kinds = {}
    for place in (path, data_root(root) / path):
        kinds[place] = kind_of(place)
        if kinds[place] == "folder" or (kinds[place] == "file" and place.suffix.lower() in FILE_TYPES):
            return place
    if kinds[path] is not None:
        kind = "a file" if kinds[path] == "file" else "a pipe, a device or a socket"
        if kind == "a file" and text.lower().endswith(ARCHIVES):
            raise UsageError(
                f"data is {text!r}, an archive that is not read as it is; unpack it and give the folder. Archives that"
                " are read are .zip and, without compression, .tar."
            )
        raise UsageError(
            f"data is {text!r}, {kind}; it must be a folder of images, a .zip of one, a .csv of paths and labels, or a "
            "data set's name."
        )
    if os.sep in text or text.startswith((".", "~")) or path.suffix:
        raise UsageError(
            f"data is {text!r}, and there is no such folder or file; give an existing path, or one of"
            f" {', '.join(sorted(DATASETS))}."
        )
    raise UsageError(f"{unknown('dataset', text, DATASETS)} There is no folder of that name either.")


def open_dataset(
    data: str | Path,
    root: str | Path | None = None,
    *,
    download: bool = True,
    info: DatasetInfo | None = None,
    evaluation: bool = False,
    unseen: bool = False,
    options: LayoutOptions | None = None,
) -> RawDataset:
    """The splits of a data set by name, or of the images at a path.

    Args:
        data: name or path.
        root: of the data sets.
        download: whether missing files of a named data set may be downloaded.
        info: of the same data, from `dataset_info`; a folder is then not scanned again.
        evaluation: whether the images at a path are for a trained network: there are the splits that it has itself, and
            nothing is set aside.
        unseen: whether other splits of a path may have classes that its training images do not have.
        options: what the user states of the layout of a path.
    """
    known = find_dataset(str(data)) if info is None else info
    if known is not None:
        known.check_serves("images")
    if known is not None and known.read is not None:
        return known.read(data_root(root), download)
    if info is not None and info.layout is not None and info.path is not None:
        return finish_splits(info.path, info.layout, info.in_chans)
    if is_stream(data, data_root(root)):
        return open_stream(data, data_root(root), evaluation=evaluation, options=options)
    path = _find_path(data, root)
    layout = read_layout(path, evaluation=evaluation, unseen=unseen, options=options)
    return own_splits(layout) if evaluation else finish_splits(path, layout)


def dataset_info(
    data: str | Path,
    root: str | Path | None = None,
    *,
    inputs: str | None = None,
    unseen: bool = False,
    options: LayoutOptions | None = None,
) -> DatasetInfo:
    """Facts about a data set, by name or by path; no image is decoded.

    Args:
        data: name or path.
        root: of the data sets.
        inputs: what is read, such as "images" or "tokens": a path is one of text for tokens; else a folder of
            .skeleton files or arrays is one of sequences, and others are of images. None for whatever the data is: a
            .txt file is text.
        unseen: whether other splits of a path may have classes that its training images do not have.
        options: what the user states of the layout of a path.

    Raises:
        UsageError: for data that has something else.
    """
    if (known := find_dataset(str(data))) is not None:
        if inputs is not None:
            known.check_serves(inputs)
        return known
    if inputs == "tokens" or (inputs is None and Path(data).suffix.lower() == ".txt"):
        from mereo.data.text import path_info

        return path_info(str(data), root)
    if inputs == "points":
        from mereo.data.point_files import path_info as point_info

        return point_info(str(data), root)
    if inputs in (None, "images", "sequences"):
        from mereo.data.sequence_files import find_folder
        from mereo.data.sequence_files import path_info as sequence_info

        if (folder := find_folder(data, lambda: data_root(root))) is not None:
            return sequence_info(folder, str(data), (options or LayoutOptions()).split_by)
    if inputs == "sequences":
        raise UsageError(
            f"data is {str(data)!r}, and there is no such data set or folder of sequences; give actions, or a folder of"
            " .skeleton, .npy or .npz files."
        )
    if inputs not in (None, "images"):
        raise UsageError(f"data is {str(data)!r}, a path, and {inputs} are needed, which only data sets by name have.")
    if is_stream(data, data_root(root)):
        dataset = open_stream(data, data_root(root), options=options)
        counts, train = {split: len(part) for split, part in dataset.splits.items()}, dataset.splits["train"]
        fields = ("masks",) if getattr(train, "masks", None) is not None else tuple(getattr(train, "fields", ()))
        named = {"multi_hot": "labels", "values": "numbers", "attributes": "attributes"}
        what = named.get(fields[0] if fields else "", "classes")
        listed = ", ".join(dataset.class_names[:_SHOWN]) + (", ..." if len(dataset.class_names) > _SHOWN else "")
        summary = f"streamed images, {len(dataset.class_names)} {what} ({listed})"
        return DatasetInfo(
            str(data), summary, str(data), len(dataset.class_names), dataset.in_chans, None, counts,
            fields=("images", *(fields or ("labels",))), read=lambda root, download: dataset, opened=dataset,
        )  # fmt: skip
    path = _find_path(data, root)
    layout = read_layout(path, unseen=unseen, options=options)
    splits, names = layout.splits, layout.names
    channels, size = sniff(splits["train"])
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    counts = {split: len(part) for split, part in splits.items()}
    summary = f"{layout.evidence}; {len(names)} classes ({shown})"
    more: dict[str, Any] = {}
    if splits["train"].masks is not None:
        more["fields"] = ("images", "masks")
    elif splits["train"].fields:
        summary, more["fields"] = layout.evidence, ("images", *splits["train"].fields)
    else:
        smallest = int(np.bincount(splits["train"].labels.numpy()).min())
        summary += f", at least {smallest} training images each"
        # In a table whole numbers are often numbers of classes, not digits.
        more["augment"] = SIGNS_AUGMENT if not is_table(path) and are_signs(names) else DEFAULT_AUGMENT
    return DatasetInfo(
        str(data), summary, str(path), len(names), channels, size, counts, path=path, layout=layout, **more
    )
