"""Notices a short training that still improved at its end, and names the command that goes on."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mereo.tasks import Task
from mereo.training.config import TrainConfig

PARTS = 5
"""The last fifth of the epochs is compared with the fifth before it."""
FEWEST = 5
"""Epochs below which nothing can be compared."""
GAIN, LEFT = 0.1, 0.01
"""Share of the remaining errors that must have gone, and errors below which nothing is worth going on for."""


def gain_at_the_end(values: Sequence[float]) -> tuple[float, float] | None:
    """Means of a share such as the accuracy over the fifth before the last and over the last, if it still rose.

    Args:
        values: of every epoch, in [0, 1], larger is better.
    """
    if len(values) < FEWEST:
        return None
    part = max(len(values) // PARTS, 2)
    late = sum(values[-part:]) / part
    before = sum(values[-2 * part : -part]) / max(len(values[-2 * part : -part]), 1)
    rising = 1 - late > LEFT and late - before >= GAIN * (1 - before)
    return (before, late) if rising else None


def still_rising(history: Sequence[Mapping[str, Any]], task: Task, config: TrainConfig, folder: Path) -> str | None:
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
        f"{what} still rose, from {task.show(gain[0])} to {task.show(gain[1])} in the last epochs; as long again:"
        f" {shlex.join(command)}"
    )
