"""Progress of a run: a bar, or a line per epoch and minute; and its history as CSV."""

import csv
import io
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mereo.files import write_atomically
from mereo.tasks import Task

COLUMNS = ("epoch", "lr", "train_loss", "train_accuracy", "val_loss", "val_accuracy", "images_per_second", "seconds")
"""Of the history of a classifier; those of any task are its `columns`."""


def percent(share: float) -> str:
    """0.9953 as 99.53 %."""
    return f"{100 * share:.2f} %"


def duration(seconds: float) -> str:
    """Seconds as text: 45 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class Report:
    """Reports the progress of a run. Silent in every process but the first.

    Args:
        silent: print nothing (the files are written all the same).
    """

    def __init__(self, *, silent: bool = False) -> None:
        self.silent = silent
        # Without a terminal there is no bar: a line is printed when none was for so many seconds.
        self.patience = 60.0
        self.live = not silent and sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None
        self._steps = self._done = self._first = 0
        self._began = self._said = 0.0

    def say(self, line: str) -> None:
        """Print one line."""
        if self.silent:
            return
        if self._bar is not None:
            self._bar.console.print(line, highlight=False, markup=False)
        else:
            print(line, flush=True)
        self._said = time.monotonic()

    def start(self, steps: int, done: int) -> None:
        """The run begins: `steps` optimiser steps in all, `done` of them before this start."""
        self._steps, self._done, self._first = steps, done, done
        self._began = self._said = time.monotonic()
        if self.live:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), transient=True,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task("training", total=steps, completed=done, rate="")

    def step(self, epoch: int, epochs: int, rate: float, loss: float | None) -> None:
        """One optimiser step is done."""
        self._done += 1
        shown = "" if loss is None else f", loss {loss:.4f}"
        if self._bar is not None:
            self._bar.update(
                self._task, advance=1, description=f"epoch {epoch}/{epochs}{shown}", rate=f"{rate:,.0f} images/s"
            )
        elif loss is not None and time.monotonic() - self._said >= self.patience:
            seconds = (time.monotonic() - self._began) / (self._done - self._first)
            left = duration(seconds * (self._steps - self._done))
            done = f"epoch {epoch}/{epochs}, step {self._done:,} of {self._steps:,}"
            self.say(f"{done}{shown}, {rate:,.0f} images/s, {left} left")

    def epoch(self, row: dict[str, Any], epochs: int, best: bool, left: float, task: Task) -> None:
        """One epoch is done: a line of its figures."""
        train, held_out = (row[f"{split}_{task.chooses[0]}"] for split in ("train", "val"))
        parts = [f"epoch {row['epoch']:>{len(str(epochs))}}/{epochs}", f"loss {row['train_loss']:.4f}"]
        parts.append(f"train {task.show(train)}")
        if held_out is not None:
            parts.append(f"val {task.show(held_out)}{' (best)' if best else ''}")
        parts += [f"{row['images_per_second']:,.0f} images/s", f"{duration(left)} left"]
        self.say("  ".join(parts))

    def stop(self) -> None:
        """Take the bar off the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def reading_progress(report: Report) -> Callable[[int, int], None]:
    """A callback (done, total) that reports how many images were read, once reading takes long."""
    began = time.monotonic()
    last = [began]

    def show(done: int, total: int) -> None:
        now = time.monotonic()
        if now - last[0] > (0.5 if report.live else 10) or (done == total and now - began > 2):
            last[0] = now
            if report.live:
                print(f"\rreading images: {done:,} of {total:,}", end="\n" if done == total else "", file=sys.stderr)
            else:
                report.say(f"reading images: {done:,} of {total:,}")

    return show


def write_history(path: Path, history: list[dict[str, Any]], columns: Sequence[str] = COLUMNS) -> None:
    """All epochs as CSV, written anew each time, so that a resumed run leaves no doubled line."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(history)
    write_atomically(path, text.getvalue().encode())
