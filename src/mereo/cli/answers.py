"""The output of `mereo predict` for a folder of labelled images."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mereo.cli.show import print_table
from mereo.escape import for_terminal
from mereo.runtime.printing import say
from mereo.runtime.text import counted, percent

if TYPE_CHECKING:
    from mereo.inference.labelled import FolderAnswers

SHOWN = 10
"""Rows of a list that is printed; the table has them all."""


def _accuracy(figures: dict[str, Any], what: str) -> str:
    low, high = percent(figures["accuracy_low"]), percent(figures["accuracy_high"])
    return (
        f"{percent(figures['accuracy'])} of {figures['count']:,} {what} (95 % interval {low} to {high}; balanced"
        f" {percent(figures['balanced_accuracy'])})"
    )


def _checks(answers: "FolderAnswers") -> list[tuple[str, str]]:
    """Rows about labels that are likely wrong, labels for which the network may be wrong instead, and image copies."""
    from mereo.inference.clean import is_available

    if not is_available():
        return [("labels", "not checked, and copies of images not searched; pip install 'mereo[clean]'")]
    rows = []
    suspects, expected = list(answers.suggestions), answers.issues.expected_errors
    certain = len(suspects) if answers.are_labels_likely_wrong else len(answers.contradictions)
    for name, part in (("likely wrong", suspects[:certain]), ("to check", suspects[certain:])):
        if part:
            first = f"{answers.paths[part[0]]} ({answers.note(part[0])})"
            rows.append((name, f"{counted(len(part), 'label')}, such as the label of {first}"))
    if suspects[certain:]:
        number = f"{expected:.0f}" if expected >= 1 else "one"
        rows.append(("", f"the network itself is expected to be wrong in about {number} answers of this confidence"))
    if answers.same:
        count = sum(len(group) for group in answers.same)
        rows.append(("copies", f"{count} images in {counted(len(answers.same), 'group')} that show the same"))
    return rows


def print_summary(answers: "FolderAnswers", written: list[Path]) -> None:
    """Accuracy first, then the images to look at, and the files with their lists."""
    from mereo.inference.answer_report import summary

    s = summary(answers)
    rows = [("accuracy", _accuracy(s["all"], "labelled images"))]
    if "held_out" in s:
        rows[0] = ("accuracy", _accuracy(s["held_out"], "images that were not trained on"))
        rows.append(("", _accuracy(s["all"], "labelled images, including images that were trained on")))
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
    rows += _checks(answers)
    if unlabelled := s["images"] - s["labelled"]:
        rows.append(("not counted", f"{counted(unlabelled, 'image')} in folders without the name of a class"))
    rows += [("written", str(path)) for path in written]
    for name, text in rows:
        say(for_terminal(f"{name:<14} {text}"))
    if answers.errors:
        say()
        shown = []
        for n in answers.errors[:SHOWN]:
            label, predicted = int(answers.labels[n]), int(answers.predicted[n])
            shares = (percent(float(answers.probabilities[n, c]), 1) for c in (predicted, label))
            shown.append((answers.paths[n], answers.names[label], answers.names[predicted], *shares, answers.note(n)))
        title = (
            f"The {SHOWN} most confident errors" if len(answers.errors) > SHOWN else "Errors, the most confident first"
        )
        print_table(("image", "label", "predicted", "probability", "of label", "note"), shown, title=title)
