"""Predictions of a task as files: what the task writes, one JSON document and a picture."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from mereo.data import Batch, load_size
from mereo.data.conversion import fit_box
from mereo.data.decode import image_size_of
from mereo.errors import UsageError
from mereo.files import starts_with, write_atomically
from mereo.inference.evaluate import prepare_batch
from mereo.inference.predict import Aside, Prediction, answer_files, describe_outputs, report_unreadable, task_of
from mereo.inference.spreadsheet import table_text, write_table
from mereo.models import VisionModel
from mereo.tasks.base import Seen, Task

DOCUMENT, PICTURE = "predictions.json", "predictions.png"


class Written(NamedTuple):
    """Predictions for image files.

    Attributes:
        predictions: one for each image that was read.
        files: that were written, the document first.
    """

    predictions: list[Prediction]
    files: list[Path]


SAMPLES = {"images": "image", "regions": "scene", "sequences": "sequence"}
"""What a sample is called, by what a network reads; a set for others."""


def unique_names(paths: Sequence[Path]) -> list[str]:
    """A name without a suffix for each file: of the file, with a number if several have the same in any capitals."""
    counts, taken, names = Counter[str](), set[str](), list[str]()
    for path in paths:
        name = path.stem
        while name.casefold() in taken:
            counts[path.stem] += 1
            name = f"{path.stem}-{counts[path.stem] + 1}"
        taken.add(name.casefold())
        names.append(name)
    return names


def seen_part(model: VisionModel, path: Path) -> Seen:
    """The part of an image file that a network is given: the box of its proportions, and the central crop of that."""
    size, (height, width) = image_size_of(path), model.image_shape[1:]
    stored = load_size((height, width), model.pretrained_cfg["crop_pct"])
    top, left, box_height, box_width = fit_box(*size, stored)
    inner = round(box_height * height / stored[0]), round(box_width * width / stored[1])
    return Seen(size, (top + (box_height - inner[0]) // 2, left + (box_width - inner[1]) // 2, *inner))


def joined(parts: Sequence[Any]) -> Any:
    """Outputs of several batches, joined to one."""
    _, form = tree_flatten(parts[0])
    leaves = zip(*(tree_flatten(part)[0] for part in parts), strict=True)
    return tree_unflatten([torch.cat(pieces) for pieces in leaves], form)


@torch.inference_mode()
def write_predictions(
    model: VisionModel,
    paths: Sequence[Path],
    out: Path,
    *,
    names: Mapping[Path, Path] = MappingProxyType({}),
    top: int = 3,
    batch_size: int = 64,
    strict: bool = False,
) -> Written:
    """Predict image files, and write the predictions as a folder or a table, see `write_outputs`.

    Args:
        model: whose weights name the task that it was trained for.
        paths: of the files.
        out: a folder or a table (.csv).
        names: of files that are called otherwise in what is written.
        top, batch_size, strict: as in `mereo.inference.predict.predict`.
    """
    task = task_of(model)
    kept, drawn = list[Any](), list[Tensor]()
    read, aside = list[Path](), list[Aside]()
    for answered in answer_files(model, paths, batch_size=batch_size, strict=strict):
        aside += answered.aside
        if answered.paths:
            if len(read) < task.most_drawn:
                drawn.append(answered.images[: task.most_drawn - len(read)])
            read += answered.paths
            kept.append(tree_map_only(Tensor, Tensor.cpu, task.kept(answered.outputs)))
    report_unreadable(aside, bool(read))
    outputs = joined(kept)
    rows = describe_outputs(model, outputs, top)
    called = [names.get(path, path) for path in read]
    predictions = [Prediction(path, values) for path, values in zip(called, rows, strict=True)]
    batch = Batch(torch.cat(drawn).to(next(model.parameters()).device))
    seen = [seen_part(model, path) for path in read]
    return Written(predictions, write_outputs(model, outputs, predictions, unique_names(called), seen, batch, out))


def write_outputs(
    model: VisionModel,
    outputs: Any,
    predictions: Sequence[Prediction],
    names: Sequence[str],
    seen: Sequence[Seen],
    drawn: Batch,
    out: Path,
) -> list[Path]:
    """Write a table, or a folder of predictions.json, predictions.png, the table and what else the task writes.

    Args:
        model: whose weights name the task that it was trained for.
        outputs: kept by the task, of all samples.
        predictions: of all samples.
        names, seen: of all samples, as `Task.write` takes them.
        drawn: the samples of the picture.
        out: a folder, made if it does not exist; or a table (.csv), with the files that it names in a folder beside it.

    Returns:
        The files, the document or the table first.
    """
    task, alone = task_of(model), is_csv(out)
    folder = out.with_suffix("") if alone else out
    files, table = list[Path](), list[Path]()
    if not alone or task.file_column is not None:
        folder.mkdir(parents=True, exist_ok=True)
        files = task.write(outputs, names, folder, seen)
    if task.cell_names:
        file_cells = [[str(file)] for file in files] if task.file_column is not None else [[]] * len(names)
        parts = zip(predictions, file_cells, task.cells(outputs), strict=True)
        rows = [[str(each.path), *file, *cells] for each, file, cells in parts]
        table = [write_table(out if alone else folder / task.table_file, table_header(task), rows)]
    if alone:
        return [*table, *files]
    document = {"task": task.name, "predictions": [prediction.to_dict() for prediction in predictions]}
    write_atomically(folder / DOCUMENT, f"{json.dumps(document, indent=1)}\n".encode())
    task.draw(model, drawn, prepare_batch(drawn, model.pretrained_cfg), folder / PICTURE)
    return [folder / DOCUMENT, folder / PICTURE, *table, *files]


def is_csv(out: Path) -> bool:
    """Whether predictions go into a table rather than a folder."""
    return out.suffix.lower() == ".csv"


def table_header(task: Task) -> tuple[str, ...]:
    """The columns of a table of predictions."""
    what = SAMPLES.get(task.input_kinds[0], "set")
    return what, *(() if task.file_column is None else (task.file_column,)), *task.cell_names


def check_table(out: Path, task: Task) -> None:
    """UsageError, before any work, for a task without a table, and for files that no earlier prediction wrote."""
    if not task.cell_names:
        raise UsageError(f"out is {out}, and predictions of the task {task.name} do not fit a table; give a folder.")
    beside = out.with_suffix("") if task.file_column is not None else None
    if out.exists() and not starts_with(out, table_text(table_header(task), ())):
        raise UsageError(f"out is {out}, a file that mereo did not write; remove it or choose another path.")
    if beside is None:
        return
    filled = not out.exists() and beside.is_dir() and any(beside.iterdir())
    if filled or beside.is_file():
        what = "has files" if filled else "is a file"
        raise UsageError(f"out is {out}, and the {task.file_column}s would go into {beside}, which {what}; rename it.")
