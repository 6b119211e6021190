"""The output of `mereo predict` for a folder of labelled images."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mereo.cli.show import print_table
from mereo.escape import for_terminal
from mereo.runtime.printing import say
from mereo.runtime.text import counted, percent

if TYPE_CHECKING:
    from mereo.inference.labelled import FolderAnswers
    from mereo.inference.spreadsheet import Cell

SHOWN = 10
"""Rows of a list that is printed; the files have them all."""


def _accuracy(figures: dict[str, Any], what: str) -> str:
    low, high = percent(figures["accuracy_low"]), percent(figures["accuracy_high"])
    return (
        f"{percent(figures['accuracy'])} of {figures['count']:,} {what} (95 % interval {low} to {high}; balanced"
        f" {percent(figures['balanced_accuracy'])})"
    )


def _labels(answers: "FolderAnswers", suspects: "Sequence[Sequence[Cell]]") -> list[tuple[str, str]]:
    """Rows about labels that are likely wrong, and about those where the network may be wrong instead."""
    certain = len(suspects) if answers.are_labels_likely_wrong else len(answers.contradictions)
    rows = []
    for name, part in (("likely wrong", suspects[:certain]), ("to check", suspects[certain:])):
        if part:
            image, *_, why = part[0]
            rows.append((name, f"{counted(len(part), 'label')}, such as that of {image} ({why})"))
    if suspects[certain:]:
        number = f"{answers.own_errors:.0f}" if answers.own_errors >= 1 else "one"
        rows.append(("", f"the network itself is expected to be wrong in about {number} answers of this confidence"))
    return rows


def print_summary(answers: "FolderAnswers", written: list[Path]) -> None:
    """Accuracy first, then what is worth looking at, and where it is written."""
    from mereo.inference.answer_report import aside_rows, error_rows, label_rows, summary

    s = summary(answers)
    files = {path.name: path for path in written}
    rows = [("accuracy", _accuracy(s["all"], "labelled images"))]
    if "held_out" in s:
        rows[0] = ("accuracy", _accuracy(s["held_out"], "images that were not trained on"))
        rows.append(("", _accuracy(s["all"], "labelled images, those trained on included")))
    if answers.views > 1:
        rows.append(("views", f"every score is the mean over {answers.views} views of the image"))
    figures = s.get("held_out", s["all"])
    if figures["count"]:
        how = "temperature of the weights" if answers.temperature is not None else "fitted to the other half of them"
        if answers.temperature is not None and answers.views > 1:
            how = "temperature of the weights, fitted to single views"
        rows.append(
            ("probabilities", f"calibration error {percent(figures['ece'], 1)},"
             f" {percent(figures['ece_uncalibrated'], 1)} without calibration ({how})")
        )  # fmt: skip
    if answers.errors:
        confused = ", ".join(f"{a} as {b} ({n})" for a, b, n in answers.confusions[:3])
        rows.append(("errors", f"{len(answers.errors):,}: {confused}{', ...' if len(answers.confusions) > 3 else ''}"))
    rows += _labels(answers, label_rows(answers)[1])
    if answers.duplicates:
        count = sum(len(group.members) for group in answers.duplicates)
        rows.append(("duplicates", f"{count} images in {counted(len(answers.duplicates), 'group')}"))
    if aside := aside_rows(answers)[1]:
        rows.append(("set aside", f"{counted(len(aside), 'file')}, such as {aside[0][0]} ({aside[0][1]})"))
    places = {
        "errors": "errors.csv", "likely wrong": "labels.csv", "to check": "labels.csv",
        "duplicates": "duplicates.csv", "set aside": "set_aside.csv",
    }  # fmt: skip
    for name, text in rows:
        where = files.get(places.get(name, ""))
        say(for_terminal(f"{name:<14} {text}{f' -> {where}' if where is not None else ''}"))
    if "errors.png" in files:
        say(for_terminal(f"{'gallery':<14} {files['errors.png']}"))
    if written:
        say(for_terminal(f"{'every image':<14} {files.get('predictions.csv', written[0])}"))
    if answers.errors:
        say()
        columns, errors = error_rows(answers)
        shown = [
            (image, label, predicted, *(percent(float(share or 0), 1) for share in shares), reason)
            for image, label, predicted, *shares, reason in errors[:SHOWN]
        ]
        title = f"The {SHOWN} most confident errors" if len(errors) > SHOWN else "Errors, the most confident first"
        print_table((columns[0], columns[1], columns[2], "probability", "of label", "reason"), shown, title=title)


def note_duplicates(answers: "FolderAnswers") -> None:
    """One line about duplicates among unlabelled images, printed with the predictions."""
    if answers.duplicates:
        first = answers.duplicates[0]
        names = ", ".join(str(answers.paths[n]) for n in first.members[:3])
        groups = counted(len(answers.duplicates), "group")
        say(for_terminal(f"{groups} of images that show the same, such as {names}"), file=sys.stderr)
