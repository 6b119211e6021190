"""The result of a finished run, its figures, the closing table, and a line on a run that still improved."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mereo.errors import UsageError
from mereo.escape import cut
from mereo.files import read_regular
from mereo.inference.evaluate import Scores
from mereo.models import VisionModel
from mereo.models.metadata import check_kinds, check_scores
from mereo.runtime.printing import say
from mereo.runtime.text import duration, rounded, text_table
from mereo.tasks import Classification, Task
from mereo.training.config import TrainConfig
from mereo.training.run_folder import RunFolder

LONGEST = 2**24
"""Bytes of a results.json."""
_KINDS: dict[str, type | tuple[type, ...]] = {
    "parameters": int, "chosen_on": str, "best_epoch": int, "train_images": int, "device": str, "torch": str,
    "seconds": (int, float), "images_per_second": (int, float),
}  # fmt: skip
PARTS = 5
"""The last fifth of the epochs is compared with the fifth before it."""
FEWEST = 5
"""Epochs below which nothing can be compared."""
GAIN, LEFT = 0.1, 0.01
"""Least share of the errors that was removed, and share of errors below which further training is not worth it."""


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


def read_results(path: Path, task: str = "classification") -> dict[str, Any]:
    """The results of a run of a task; UsageError for a file that is not what a run writes."""
    try:
        results = json.loads(read_regular(path, LONGEST))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} is not a valid results.json ({cut(str(error), 200)}); remove it to train again."
        ) from error
    check_kinds(results, _KINDS, str(path))
    for name in ("test_best", "test_last"):
        check_scores(results.get(name), task, f"{name} in {path}")
    return dict(results)


def gain_at_the_end(values: Sequence[float]) -> tuple[float, float] | None:
    """Means of a share, such as the accuracy, over the last but one and the last fifth of epochs, if it still rose.

    Args:
        values: of every epoch, in [0, 1], larger is better.
    """
    if len(values) < FEWEST:
        return None
    part = max(len(values) // PARTS, 2)
    late = sum(values[-part:]) / part
    before = sum(values[-2 * part : -part]) / max(len(values[-2 * part : -part]), 1)
    still_rose = 1 - late > LEFT and late - before >= GAIN * (1 - before)
    return (before, late) if still_rose else None


def still_improving(history: Sequence[Mapping[str, Any]], task: Task, config: TrainConfig, folder: Path) -> str | None:
    """A line that a training still improved, with the command to go on; None otherwise.

    Args:
        history: a row of results for every epoch.
        task: what was trained.
        config: of the run.
        folder: of the run.
    """
    metric, direction = task.chooses
    if not task.is_share or direction != "max" or config.patience is not None:
        return None
    name = f"val_{metric}" if history and history[-1].get(f"val_{metric}") is not None else f"train_{metric}"
    gain = gain_at_the_end([float(row[name]) for row in history if row[name] is not None])
    if gain is None:
        return None
    what = f"{'validation' if name.startswith('val') else 'training'} {metric}"
    command = ["mereo", "train", str(folder / "config.yaml"), "--weights", str(folder)]
    longer = ["--epochs", str(config.epochs)] if config.minutes is None else ["--minutes", f"{config.minutes:g}"]
    command += longer
    if config.name is not None:
        command += ["--name", f"{config.name}-longer"]
    return (
        f"{what} still rose, from {task.show(gain[0])} to {task.show(gain[1])} in the last epochs; to go on:"
        f" {shlex.join(command)}"
    )
