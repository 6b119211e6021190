"""The progress lines of a training, and the history of its epochs as CSV and as curves."""

import csv
import io
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mereo.files import write_atomically
from mereo.pictures import new_figure, plain_log, save_figure, whole_ticks
from mereo.runtime.progress import Reporter
from mereo.runtime.text import duration, rounded
from mereo.tasks import Task

COLUMNS = ("epoch", "lr", "train_loss", "train_accuracy", "val_loss", "val_accuracy", "images_per_second", "seconds")
"""Columns of the history of a classifier; for any task they are its `columns`."""

FIRST_SECONDS = 1.0
"""Seconds of training before the first line of progress, if there is no terminal."""


class Report(Reporter):
    """Shows the progress of a training, in the first process only.

    Args:
        silent: print nothing; files are still written.
    """

    def __init__(self, *, silent: bool = False) -> None:
        super().__init__(silent=silent, output="stdout")

    unit = "images"

    def start(self, steps: int, done: int, unit: str = "images") -> None:
        """The run starts: `steps` optimiser steps in total, `done` of them already done, of images or another unit."""
        self.unit = unit
        self.begin("training", steps, done)
        # The first loss is shown early, so that one sees that it trains.
        self._last_line -= max(self.patience - FIRST_SECONDS, 0.0)

    def expect(self, steps: int) -> None:
        """The run will have `steps` optimiser steps in total, as it is planned now."""
        self._total = steps
        if self._bar is not None:
            self._bar.update(self._task, total=steps)

    def step(self, epoch: int, epochs: int, rate: float, loss: float | None) -> None:
        """One optimiser step is done; the loss is None if it was not read from the device."""
        shown, speed = "" if loss is None else f", loss {loss:.4f}", f"{rounded(rate)} {self.unit}/s"
        self.advance(title=f"epoch {epoch}/{epochs}{shown}", rate=speed)
        if loss is not None and self.due():
            done = f"epoch {epoch}/{epochs}, step {self._done:,} of {self._total:,}"
            self.say(f"{done}{shown}, {speed}, {self.left()} left")

    def epoch(
        self, row: dict[str, Any], epochs: int, best: bool, left: float, task: Task, chosen_by: str | None = None
    ) -> None:
        """One epoch is done: print its metrics, and the one that chooses the best epoch if it is another."""
        train, held_out = (row[f"{split}_{task.chooses[0]}"] for split in ("train", "val"))
        parts = [f"epoch {row['epoch']:>{len(str(epochs))}}/{epochs}", f"loss {row['train_loss']:.4f}"]
        if train is not None:
            parts.append(f"train {task.show(train)}")
        if held_out is not None:
            chosen = row.get(f"val_{chosen_by}") if chosen_by != task.chooses[0] else None
            named = "" if chosen is None else f", {str(chosen_by).replace('_', ' ')} {task.show(chosen)}"
            parts.append(f"val {task.show(held_out)}{named}{' (best)' if best else ''}")
        parts += [f"{rounded(row['images_per_second'])} {task.unit}/s", f"{duration(left)} left"]
        self.say("  ".join(parts))


def reading_progress(report: Report) -> Callable[[int, int], None]:
    """A callback (done, total) that shows the progress of reading images, every ten seconds without a terminal."""
    return partial(Reporter(silent=report.silent, output="stdout", patience=10.0).reach, "reading images")


def write_history(path: Path, history: list[dict[str, Any]], columns: Sequence[str] = COLUMNS) -> None:
    """Write all epochs as CSV, replacing the file, so that a resumed run leaves no duplicate lines."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(history)
    write_atomically(path, text.getvalue().encode())


def draw_curves(history: list[dict[str, Any]], path: Path, metric: str = "accuracy", *, is_share: bool = True) -> None:
    """The loss and one metric by epoch, a share in percent."""
    figure = new_figure(9, 3.2)
    left, right = figure.subplots(1, 2)
    epochs = [row["epoch"] for row in history]
    for axes, quantity, scale in ((left, "loss", 1), (right, metric, 100 if is_share else 1)):
        for split, label in (("train", "training"), ("val", "validation")):
            values = [row[f"{split}_{quantity}"] for row in history]
            if None not in values:
                axes.plot(epochs, [scale * v for v in values], marker="." if len(epochs) < 40 else "", label=label)
        axes.set_xlabel("epoch")
        axes.set_ylabel(quantity + (" in %" if scale == 100 else ""))
        axes.grid(alpha=0.3)
        whole_ticks(axes.xaxis)
    if all(row["train_loss"] > 0 for row in history):
        left.set_yscale("log")
        plain_log(left.yaxis)
    left.legend()
    save_figure(figure, path)
