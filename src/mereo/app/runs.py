"""A run on the page: its curves, its test images, its errors and confusion matrix."""

import csv
import io
import math
from typing import Any

import torch

from mereo.app.networks import Networks, ShownNetwork
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
"""Test images that errors are looked for in."""
MOST_ERRORS = 60
_AT_ONCE = 100
_LONGEST = 2**24
_MOST_EPOCHS = 2000


def _folder(network: ShownNetwork) -> RunFolder | None:
    """The run folder of a network."""
    path = network.source if network.source.is_dir() else network.source.parent.parent
    folder = RunFolder(path)
    return folder if network.config is not None and folder.history.is_file() else None


def facts(networks: Networks) -> list[dict[str, Any]]:
    """What the page must know of its networks."""
    rows = []
    for number, network in enumerate(networks.networks):
        channels, height, width = network.model.image_shape
        rows.append({
            "number": number, "name": for_terminal(network.name), "architecture": network.model.config["model"],
            "parameters": sum(p.numel() for p in network.model.parameters()), "channels": channels, "height": height,
            "width": width, "classes": [for_terminal(name) for name in network.classes],
            "data": None if network.data is None else for_terminal(network.data),
            "reason": for_terminal(network.reason),
            "curves": _folder(network) is not None,
        })  # fmt: skip
    return rows


def _value(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def curves(networks: Networks, number: int) -> dict[str, Any]:
    """The history of a run, column by column, and its results."""
    network = networks.network(number)
    folder = _folder(network)
    if folder is None:
        raise UsageError(f"{network.source} is not in a run folder, so there are no curves.")
    try:
        text = read_regular(folder.history, _LONGEST).decode(errors="replace")
    except OSError as error:
        raise MereoError(f"cannot read {folder.history}: {error.strerror}.") from error
    rows = list(csv.DictReader(io.StringIO(text)))[:_MOST_EPOCHS]
    names = [name for name in (rows[0] if rows else {}) if isinstance(name, str)]
    columns = {for_terminal(name): [_value(str(row.get(name))) for row in rows] for name in names}
    results = None
    if folder.results.is_file() and network.config is not None:
        results = read_results(folder.results, network.config.task)
        results = {name: results[name] for name in ("best_epoch", "chosen_on", "seconds", "train_images")}
    return {"columns": columns, "results": results}


def images_page(networks: Networks, number: int, start: int) -> dict[str, Any]:
    """Some test images of a network, with their classes."""
    network = networks.network(number)
    try:
        images = networks.own_test(network)
    except OSError as error:
        raise MereoError(f"the test images cannot be read ({error.strerror}).") from error
    start = min(max(start, 0), max(len(images) - 1, 0)) // PAGE * PAGE
    indices = torch.arange(start, min(start + PAGE, len(images)))
    return {"start": start, "count": len(images), "page": PAGE, "images": _thumbnails(network, images, indices)}


def _thumbnails(network: ShownNetwork, images: Any, indices: torch.Tensor) -> list[dict[str, Any]]:
    batch = images.batch(indices, crop=(network.model.image_shape[1], network.model.image_shape[2]))
    return [
        {"index": index, "class": for_terminal(network.classes[label]), "image": image_data(image.cpu())}
        for index, label, image in zip(indices.tolist(), batch.labels.tolist(), batch.images, strict=True)
    ]


def errors(networks: Networks, number: int) -> dict[str, Any]:
    """The confusion matrix of a network on its test images, at most `MOST_IMAGES` of them, and its errors.

    The lock is given back between batches, so that the page goes on answering.
    """
    network = networks.network(number)
    with networks.lock:
        images = networks.own_test(network)
        chosen = torch.arange(len(images))
        if len(images) > MOST_IMAGES:
            chosen = stratified(images.strata, MOST_IMAGES, 0)[1].sort().values
    predicted, labels = [], []
    for part in chosen.split(_AT_ONCE):
        with networks.lock:
            answers = collect_answers(network.model, images.subset(part))
        predicted.append(answers.predicted)
        labels.append(answers.labels)
    if not len(chosen):
        raise MereoError("there are no test images.")
    given, true = torch.cat(predicted), torch.cat(labels)
    wrong = (given != true).nonzero().flatten()[:MOST_ERRORS]
    with networks.lock:
        shown = _thumbnails(network, images, chosen[wrong]) if len(wrong) else []
    for row, guess in zip(shown, given[wrong].tolist(), strict=True):
        row["predicted"] = for_terminal(network.classes[guess])
    return {
        "count": len(chosen),
        "of": len(images),
        "accuracy": float((given == true).double().mean()),
        "confusion": confusion_matrix(given, true, network.model.num_classes).tolist(),
        "wrong": int((given != true).sum()),
        "errors": shown,
    }


def reason(error: Exception) -> str:
    """An error in one line."""
    return for_terminal(first_line(error))
