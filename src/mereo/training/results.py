"""The result of a finished run, its figures and the closing table."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mereo.inference.evaluate import Scores
from mereo.models import VisionModel
from mereo.runtime.printing import say
from mereo.runtime.text import duration, rounded, text_table
from mereo.tasks import Classification, Task
from mereo.training.run_folder import RunFolder


@dataclass(frozen=True)
class RunResult:
    """The result of a finished run.

    Attributes:
        folder: with its files.
        test_best: scores of the weights of the best epoch.
        test_last: scores of the weights of the last epoch.
        results: the content of results.json.
        model: the network with the weights of the best epoch, on the device, in eval mode.
        main: whether this is the first process, the one that reports.
        task: what was trained.
        note: a line about a training that still improved at its end; None for any other.
    """

    folder: RunFolder
    test_best: Scores
    test_last: Scores
    results: dict[str, Any]
    model: VisionModel
    main: bool = True
    task: Task = field(default_factory=Classification)
    note: str | None = None


def describe_calibration(figures: dict[str, Any]) -> str:
    """How well the probabilities of a run agree with its accuracy, on one line."""
    tested = "test_" if figures["test_images"] else ""
    before, after = figures[f"{tested}ece_before"], figures[f"{tested}ece_after"]
    return (
        f"calibration error {100 * after:.1f} % on {'test' if tested else 'validation'} images ({100 * before:.1f} %"
        f" before calibration; temperature {figures['temperature']:.3g}, from {figures['images']:,} validation images)"
    )


def summary(result: RunResult, picture: Path | None = None) -> None:
    """Print the table at the end of a run: test figures, size, speed and the paths of all files."""
    rows = summary_rows(result)
    if picture is not None:
        rows.append(("explanation", str(picture)))
    say("\n" + text_table(("", ""), rows))
    if result.note is not None:
        say(f"\n{result.note}")


def summary_rows(result: RunResult) -> list[tuple[str, str]]:
    """The table of a finished run as names and values."""
    r, task = result.results, result.task
    chosen = {"validation": "best on validation", "test": "best on TEST images, as in the papers"}
    rows = task.summary(r["test_best"], f"{chosen.get(r['chosen_on'], 'last epoch')}, epoch {r['best_epoch']}")
    if r["chosen_on"] != "last epoch":
        rows.insert(1, ("at the last epoch", task.show(r["test_last"][task.chooses[0]])))
    if "calibration" in r:
        rows.append(("probabilities", describe_calibration(r["calibration"])))
    rows += [
        ("parameters", f"{r['parameters']:,}"),
        ("training", f"{duration(r['seconds'])} on {r['device']}, {rounded(r['images_per_second'])} {task.unit}/s"),
        ("weights", str(result.folder.best)),
        ("run folder", str(result.folder.path)),
    ]
    return rows
