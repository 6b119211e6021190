"""Predictions of a task as files: what the task writes, one JSON document and a picture."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from mereo.data import Batch, load_size
from mereo.data.conversion import fit_box
from mereo.data.decode import image_size_of
from mereo.files import write_atomically
from mereo.inference.evaluate import prepare_batch
from mereo.inference.predict import Aside, Prediction, answer_files, describe_outputs, report_unreadable, task_of
from mereo.models import VisionModel
from mereo.tasks.base import Seen

DOCUMENT, PICTURE = "predictions.json", "predictions.png"


class Written(NamedTuple):
    """Predictions for image files.

    Attributes:
        predictions: one for each image that was read.
        files: that were written, the document first.
    """

    predictions: list[Prediction]
    files: list[Path]


def unique_names(paths: Sequence[Path]) -> list[str]:
    """A name without a suffix for each file: of the file, with a number if several have the same."""
    counts: dict[str, int] = {}
    names = []
    for path in paths:
        counts[path.stem] = counts.get(path.stem, 0) + 1
        names.append(path.stem if counts[path.stem] == 1 else f"{path.stem}-{counts[path.stem]}")
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
    folder: Path,
    *,
    top: int = 3,
    batch_size: int = 64,
    strict: bool = False,
) -> Written:
    """Predict image files, and write what the task writes, predictions.json and predictions.png into a folder.

    Args:
        model: whose weights name the task that it was trained for.
        paths: of the files.
        folder: of the predictions, made if it does not exist.
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
    predictions = [Prediction(path, values) for path, values in zip(read, rows, strict=True)]
    batch = Batch(torch.cat(drawn).to(next(model.parameters()).device))
    seen = [seen_part(model, path) for path in read]
    return Written(predictions, write_outputs(model, outputs, predictions, unique_names(read), seen, batch, folder))


def write_outputs(
    model: VisionModel,
    outputs: Any,
    predictions: Sequence[Prediction],
    names: Sequence[str],
    seen: Sequence[Seen],
    drawn: Batch,
    folder: Path,
) -> list[Path]:
    """Write what the task writes, predictions.json and predictions.png into a folder: the files, the document first.

    Args:
        model: whose weights name the task that it was trained for.
        outputs: kept by the task, of all samples.
        predictions: of all samples.
        names, seen: of all samples, as `Task.write` takes them.
        drawn: the samples of the picture.
        folder: made if it does not exist.
    """
    task = task_of(model)
    folder.mkdir(parents=True, exist_ok=True)
    document = {"task": task.name, "predictions": [prediction.to_dict() for prediction in predictions]}
    write_atomically(folder / DOCUMENT, f"{json.dumps(document, indent=1)}\n".encode())
    files = task.write(outputs, names, folder, seen)
    task.draw(model, drawn, prepare_batch(drawn, model.pretrained_cfg), folder / PICTURE)
    return [folder / DOCUMENT, folder / PICTURE, *files]
