"""Networks and their runs on the page: training curves, test images, errors, the confusion matrix."""

import csv
import io
import math
from typing import Any

import torch

from mereo.app.session import ServedModel, Session
from mereo.data.split import stratified
from mereo.errors import MereoError, UsageError, first_line
from mereo.escape import for_terminal
from mereo.explain.trees.page import image_data
from mereo.files import read_regular
from mereo.inference.answers import collect_answers
from mereo.inference.metrics import confusion_matrix
from mereo.training.figures import read_results
from mereo.training.run_folder import RunFolder

PAGE = 24
"""Test images shown at a time."""
MOST_IMAGES = 1000
"""Test images that are evaluated."""
MOST_ERRORS = 60
"""Misclassified images that are shown."""
_BATCH = 100
_LONGEST = 2**24
"""Bytes of the file of the training history."""
_MOST_EPOCHS = 2000


def _folder(served: ServedModel) -> RunFolder | None:
    """The run folder of a network; None if its weights are not in one."""
    path = served.source if served.source.is_dir() else served.source.parent.parent
    folder = RunFolder(path)
    return folder if served.config is not None and folder.history.is_file() else None


def describe_models(session: Session) -> list[dict[str, Any]]:
    """Name, size, classes and data of each network."""
    rows = []
    for number, served in enumerate(session.models):
        channels, height, width = served.model.image_shape
        rows.append({
            "number": number, "name": for_terminal(served.name), "architecture": served.model.config["model"],
            "parameters": sum(p.numel() for p in served.model.parameters()), "channels": channels, "height": height,
            "width": width, "classes": [for_terminal(name) for name in served.classes],
            "data": None if served.data is None else for_terminal(served.data),
            "reason": for_terminal(served.reason),
            "curves": _folder(served) is not None,
        })  # fmt: skip
    return rows


def _value(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def curves(session: Session, number: int) -> dict[str, Any]:
    """The training history of a run by column, and its results."""
    served = session.model(number)
    folder = _folder(served)
    if folder is None:
        raise UsageError(f"{served.source} is not in a run folder, so there are no curves.")
    try:
        text = read_regular(folder.history, _LONGEST).decode(errors="replace")
    except OSError as error:
        raise MereoError(f"cannot read {folder.history}: {error.strerror}.") from error
    rows = list(csv.DictReader(io.StringIO(text)))[:_MOST_EPOCHS]
    names = [name for name in (rows[0] if rows else {}) if isinstance(name, str)]
    columns = {for_terminal(name): [_value(str(row.get(name))) for row in rows] for name in names}
    results = None
    if folder.results.is_file() and served.config is not None:
        results = read_results(folder.results, served.config.task)
        results = {name: results[name] for name in ("best_epoch", "chosen_on", "seconds", "train_images")}
    return {"columns": columns, "results": results}


def list_test_images(session: Session, number: int, start: int) -> dict[str, Any]:
    """One page of test images with their classes."""
    served = session.model(number)
    try:
        images = session.labelled_test_images(served)
    except OSError as error:
        raise MereoError(f"the test images cannot be read ({error.strerror}).") from error
    start = min(max(start, 0), max(len(images) - 1, 0)) // PAGE * PAGE
    indices = torch.arange(start, min(start + PAGE, len(images)))
    return {"start": start, "count": len(images), "page": PAGE, "images": _thumbnails(served, images, indices)}


def _thumbnails(served: ServedModel, images: Any, indices: torch.Tensor) -> list[dict[str, Any]]:
    batch = images.batch(indices, crop=(served.model.image_shape[1], served.model.image_shape[2]))
    return [
        {"index": index, "class": for_terminal(served.classes[label]), "image": image_data(image.cpu())}
        for index, label, image in zip(indices.tolist(), batch.labels.tolist(), batch.images, strict=True)
    ]


def errors(session: Session, number: int) -> dict[str, Any]:
    """The confusion matrix of a network on at most `MOST_IMAGES` of its test images, and the misclassified ones.

    The lock is released between batches, so that other requests are served meanwhile.
    """
    served = session.model(number)
    with session.lock:
        images = session.labelled_test_images(served)
        chosen = torch.arange(len(images))
        if len(images) > MOST_IMAGES:
            chosen = stratified(images.strata, MOST_IMAGES, 0)[1].sort().values
    predicted, labels = [], []
    for part in chosen.split(_BATCH):
        with session.lock:
            outputs = collect_answers(served.model, images.subset(part))
        predicted.append(outputs.predicted)
        labels.append(outputs.labels)
    if not len(chosen):
        raise MereoError("there are no test images.")
    predicted_labels, true = torch.cat(predicted), torch.cat(labels)
    wrong = (predicted_labels != true).nonzero().flatten()[:MOST_ERRORS]
    with session.lock:
        shown = _thumbnails(served, images, chosen[wrong]) if len(wrong) else []
    for row, guess in zip(shown, predicted_labels[wrong].tolist(), strict=True):
        row["predicted"] = for_terminal(served.classes[guess])
    return {
        "count": len(chosen),
        "of": len(images),
        "accuracy": float((predicted_labels == true).double().mean()),
        "confusion": confusion_matrix(predicted_labels, true, served.model.num_classes).tolist(),
        "wrong": int((predicted_labels != true).sum()),
        "errors": shown,
    }


def error_line(error: Exception) -> str:
    """The message of an error in one line."""
    return for_terminal(first_line(error))
