"""The answers for a folder of images as files: a table for spreadsheets, a picture of the errors, a JSON document."""

import json
from pathlib import Path
from textwrap import wrap
from typing import Any

import torch

from mereo.data.decode import decode
from mereo.escape import cut, for_terminal
from mereo.files import write_atomically
from mereo.inference.clean import is_available
from mereo.inference.labelled import UNKNOWN, FolderAnswers
from mereo.inference.spreadsheet import Cell, write_table
from mereo.pictures import displayable, grid_of_panels, save_figure
from mereo.runtime.text import percent

DOCUMENT, TABLE, PICTURE = "predictions.json", "predictions.csv", "errors.png"
DRAWN, SIDE, NAME_LETTERS = 24, 160, 24
"""Errors on the picture, the most confident; rows and columns of an image; letters of a name below it."""
METHOD = (
    "confident learning (arXiv:1911.00068) by cleanlab: an image is listed if the class of its highest probability is"
    " not its label and that probability is at least the mean probability of that class among the images labelled so;"
    " images that show the same and have different labels are listed too; expected_errors is the number of answers of"
    " this confidence that the network itself is expected to get wrong: the sum of one minus the probability"
)


def output_files(folder: Path) -> list[Path]:
    """Every file that `write_answers` may write."""
    return [folder / name for name in (DOCUMENT, TABLE, PICTURE)]


def prediction_rows(answers: FolderAnswers) -> tuple[tuple[str, ...], list[tuple[Cell, ...]]]:
    """Columns and rows with the answer for every image."""
    names = answers.names
    shares, order = answers.probabilities.topk(min(2, len(names)), 1)
    columns = (
        "image", "class", "probability", "second class", "its probability", "score", "label", "correct",
        "suggested label", "note",
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for n, path in enumerate(answers.paths):
        best, label = int(answers.predicted[n]), int(answers.labels[n])
        second = [names[int(order[n, 1])], _digits(shares[n, 1])] if len(names) > 1 else [None, None]
        suggested = answers.suggestions.get(n)
        rows.append(
            (str(path), names[best], _digits(answers.probabilities[n, best]), *second, _digits(answers.scores[n, best]),
             None if label == UNKNOWN else names[label],
             None if label == UNKNOWN else "yes" if best == label else "no",
             None if suggested is None else names[suggested], answers.note(n))
        )  # fmt: skip
    return columns, rows


def _digits(value: torch.Tensor) -> float:
    return round(float(value), 6)


def summary(answers: FolderAnswers) -> dict[str, Any]:
    """Accuracy and counts as plain values; accuracy for labelled images only, also of those not trained on."""
    labelled, trained = answers.labels >= 0, answers.trained
    document: dict[str, Any] = {
        "images": len(answers.paths), "labelled": int(labelled.sum()), "temperature": answers.temperature,
        "views": answers.views, "unreadable": [{"image": str(path), "reason": why} for path, why in answers.aside],
    }  # fmt: skip
    if bool(labelled.any()):
        document |= {"trained_on": int((labelled & trained).sum()), "all": answers.figures(labelled)}
        document["confusions"] = [{"label": a, "predicted": b, "count": count} for a, b, count in answers.confusions]
        if is_available():
            document["same_pictures"] = [[str(answers.paths[n]) for n in group] for group in answers.same]
            document["labels_to_check"], document["method_of_labels"] = len(answers.suggestions), METHOD
            document["expected_errors"] = round(answers.issues.expected_errors, 1)
        if bool((labelled & trained).any()):
            document["held_out"] = answers.figures(~trained)
    return document


def draw_errors(answers: FolderAnswers, path: Path) -> None:
    """Draw the most confident errors as PNG, each with its file name, its classes and the note about it."""
    chosen = answers.errors[:DRAWN]
    figure, (panels,) = grid_of_panels(len(chosen), 4, (2.5, 3.5))
    for axes, place in zip(panels, chosen, strict=True):
        with answers.paths[place].open("rb") as stream:
            pixels = torch.from_numpy(decode(stream, (SIDE, SIDE), answers.channels).copy())
        axes.imshow(displayable(pixels / 255), cmap="gray", vmin=0, vmax=1)
        axes.set(xticks=[], yticks=[])
        shares = answers.probabilities[place]
        predicted, labelled = (
            f"{word} {cut(for_terminal(answers.names[k]), NAME_LETTERS)}, {percent(float(shares[k]), 0)}"
            for word, k in (("predicted", int(answers.predicted[place])), ("labelled", int(answers.labels[place])))
        )
        axes.set_title(predicted, fontsize=9, color="crimson", loc="left")
        name = cut(for_terminal(answers.paths[place].name), NAME_LETTERS)
        lines = [labelled, name, *wrap(answers.note(place), 38, max_lines=2, placeholder=" ...")]
        axes.set_xlabel("\n".join(lines), fontsize=7.5, loc="left")
    total = len(answers.errors)
    title = f"{total} misclassified" if total <= DRAWN else f"{DRAWN} of {total} misclassified, the most confident"
    figure.suptitle(title, fontsize=11, weight="bold")
    save_figure(figure, path)


def write_answers(answers: FolderAnswers, folder: Path, weights: str) -> list[Path]:
    """Write the table, the document, and the picture if there are errors; one of earlier answers is removed otherwise.

    Args:
        answers: of labelled or unlabelled images.
        folder: to write into.
        weights: where the network is from.
    """
    columns, rows = prediction_rows(answers)
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    document = {"mereo": "predictions", "weights": weights, "summary": summary(answers), "predictions": records}
    again = (folder / DOCUMENT).exists()
    write_atomically(folder / DOCUMENT, f"{json.dumps(document, indent=1)}\n")
    written = [folder / DOCUMENT, write_table(folder / TABLE, columns, rows)]
    if answers.errors:
        draw_errors(answers, folder / PICTURE)
        written.append(folder / PICTURE)
    elif again:
        (folder / PICTURE).unlink(missing_ok=True)
    return written
