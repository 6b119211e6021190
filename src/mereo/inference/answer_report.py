"""The answers for a folder of images as files: tables for spreadsheets, a gallery of errors, one JSON document."""

import json
from pathlib import Path
from typing import Any

import torch

from mereo.files import write_atomically
from mereo.inference.gallery import draw_errors
from mereo.inference.labelled import UNKNOWN, FolderAnswers
from mereo.inference.spreadsheet import Cell, write_table

DOCUMENT = "predictions.json"
TABLES = ("predictions.csv", "errors.csv", "labels.csv", "duplicates.csv", "set_aside.csv")
GALLERY = "errors.png"
METHOD = (
    "confident learning (arXiv:1911.00068): an image is listed if the class of its highest probability is not its label"
    " and that probability is at least the mean probability of that class among the images labelled so; images that"
    " show the same and have different labels are listed too; expected_errors are those of the network itself among"
    " answers as confident: the sum of one minus the probability"
)
WHY = "the network is as confident of the suggestion as it is of images labelled so"


def output_files(folder: Path) -> list[Path]:
    """Every file that `write_answers` may write."""
    return [folder / name for name in (DOCUMENT, *TABLES, GALLERY)]


def _label(answers: FolderAnswers, place: int) -> str | None:
    number = int(answers.labels[place])
    return None if number == UNKNOWN else answers.names[number]


def prediction_rows(answers: FolderAnswers) -> tuple[tuple[str, ...], list[tuple[Cell, ...]]]:
    """Columns and rows with the answer for every image."""
    top = min(2, len(answers.names))
    shares, order = answers.probabilities.topk(top, 1)
    columns = ("image", "class", "probability", "second class", "its probability", "score", "label", "correct")
    rows: list[tuple[Cell, ...]] = []
    for n, path in enumerate(answers.paths):
        best, label = int(answers.predicted[n]), _label(answers, n)
        second = [answers.names[int(order[n, 1])], _digits(shares[n, 1])] if top > 1 else [None, None]
        right = None if label is None else "yes" if best == int(answers.labels[n]) else "no"
        rows.append(
            (str(path), answers.names[best], _digits(answers.probabilities[n, best]), *second,
             _digits(answers.scores[n, best]), label, right)
        )  # fmt: skip
    return columns, rows


def _digits(value: torch.Tensor) -> float:
    return round(float(value), 6)


def error_rows(answers: FolderAnswers) -> tuple[tuple[str, ...], list[tuple[Cell, ...]]]:
    """Columns and rows of the misclassified images, the most confident first."""
    columns = ("image", "label", "predicted", "probability of predicted", "probability of label", "reason")
    rows: list[tuple[Cell, ...]] = []
    for n in answers.errors:
        label, predicted = int(answers.labels[n]), int(answers.predicted[n])
        own, other = _digits(answers.probabilities[n, label]), _digits(answers.probabilities[n, predicted])
        names = answers.names
        rows.append((str(answers.paths[n]), names[label], names[predicted], other, own, answers.reason(n)))
    return columns, rows


def label_rows(answers: FolderAnswers) -> tuple[tuple[str, ...], list[tuple[Cell, ...]]]:
    """Columns and rows of labels to check: same picture with two labels first, then the most certain."""
    columns = ("image", "label", "suggested", "probability of suggested", "probability of label", "reason")
    rows: list[tuple[Cell, ...]] = []
    suspects = [
        (n, int(answers.labels[n]), int(answers.labels[m]), f"{answers.paths[m]} shows the same")
        for n, m in answers.contradictions
    ]
    twice = {n for n, _ in answers.contradictions}
    suspects += [(s.place, s.label, s.suggested, WHY) for s in answers.suspects if s.place not in twice]
    for n, label, suggested, why in suspects:
        shares = _digits(answers.probabilities[n, suggested]), _digits(answers.probabilities[n, label])
        rows.append((str(answers.paths[n]), answers.names[label], answers.names[suggested], *shares, why))
    return columns, rows


def duplicate_rows(answers: FolderAnswers) -> tuple[tuple[str, ...], list[tuple[Cell, ...]]]:
    """Columns and rows of images that show the same, group by group."""
    columns = ("group", "kind", "image", "label", "labels differ")
    rows: list[tuple[Cell, ...]] = []
    for number, group in enumerate(answers.duplicates, 1):
        labels = {_label(answers, n) for n in group.members} - {None}
        for n in group.members:
            kind = "same file" if group.exact else "same picture"
            rows.append((number, kind, str(answers.paths[n]), _label(answers, n), "yes" if len(labels) > 1 else "no"))
    return columns, rows


def aside_rows(answers: FolderAnswers) -> tuple[tuple[str, ...], list[tuple[Cell, ...]]]:
    """Columns and rows of what was set aside: unreadable files, and images without a label among labelled ones."""
    rows: list[tuple[Cell, ...]] = [(str(path), reason) for path, reason in answers.aside]
    if bool((answers.labels >= 0).any()):
        for n in (answers.labels == UNKNOWN).nonzero()[:, 0].tolist():
            folder = answers.paths[n].parent.name
            rows.append((str(answers.paths[n]), f"not counted: its folder, {folder}, has the name of no class"))
    return ("image", "reason"), rows


def summary(answers: FolderAnswers) -> dict[str, Any]:
    """Accuracy and counts as plain values; accuracy for labelled images only, also of those not trained on."""
    labelled, trained = answers.labels >= 0, answers.trained
    document: dict[str, Any] = {
        "images": len(answers.paths), "labelled": int(labelled.sum()), "temperature": answers.temperature,
        "views": answers.views, "set_aside": len(aside_rows(answers)[1]), "duplicate_groups": len(answers.duplicates),
    }  # fmt: skip
    if bool(labelled.any()):
        document |= {"trained_on": int((labelled & trained).sum()), "all": answers.figures(labelled)}
        document["labels_to_check"], document["method_of_labels"] = len(label_rows(answers)[1]), METHOD
        document["expected_errors"] = round(answers.own_errors, 1)
        document["confusions"] = [{"label": a, "predicted": b, "count": count} for a, b, count in answers.confusions]
        if bool((labelled & trained).any()):
            document["held_out"] = answers.figures(~trained)
    return document


def as_records(table: tuple[tuple[str, ...], list[tuple[Cell, ...]]]) -> list[dict[str, Cell]]:
    """The rows of a table by the names of its columns."""
    return [dict(zip(table[0], row, strict=True)) for row in table[1]]


def write_answers(answers: FolderAnswers, folder: Path, weights: str) -> list[Path]:
    """Write tables, the gallery and the document; tables without a row are left out, and those of earlier
    answers in the same folder are removed.

    Args:
        answers: of labelled or unlabelled images.
        folder: to write into.
        weights: where the network is from.
    """
    makers = (prediction_rows, error_rows, label_rows, duplicate_rows, aside_rows)
    tables = {name: make(answers) for name, make in zip(TABLES, makers, strict=True)}
    document = {
        "mereo": "predictions", "weights": weights, "summary": summary(answers),
        **{name.removesuffix(".csv"): as_records(table) for name, table in tables.items()},
    }  # fmt: skip
    again = (folder / DOCUMENT).exists()
    write_atomically(folder / DOCUMENT, f"{json.dumps(document, indent=1)}\n")
    written = [folder / DOCUMENT]
    for name, (columns, rows) in tables.items():
        if rows:
            written.append(write_table(folder / name, columns, rows))
        elif again:
            (folder / name).unlink(missing_ok=True)
    gallery = draw_errors(answers, folder / GALLERY)
    if gallery is not None:
        written.append(gallery)
    elif again:
        (folder / GALLERY).unlink(missing_ok=True)
    return written
