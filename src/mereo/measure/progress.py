"""How far a long evaluation is: a bar on a terminal, a line a stage and a minute when piped, on standard error."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mereo.training.report import duration


class Stages:
    """Tells a person which stage of the work is going on.

    Args:
        silent: tell nothing.
    """

    def __init__(self, *, silent: bool = False) -> None:
        self.silent, self.live = silent, not silent and sys.stderr.isatty()
        self.patience = 60.0

    @contextmanager
    def stage(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        """A stage of `total` parts; what it yields is called with the number of parts done since the last call."""
        began = time.monotonic()
        bar: Any = None
        if self.live:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                transient=True, console=Console(stderr=True),
            )  # fmt: skip
            bar.start()
            task = bar.add_task(title, total=total)
        try:
            yield self._lines(title, total) if bar is None else (lambda done: bar.advance(task, done))
        finally:
            if bar is not None:
                bar.stop()
        if not self.silent:
            print(f"{title}: {duration(time.monotonic() - began)}", file=sys.stderr, flush=True)

    def _lines(self, title: str, total: int) -> Callable[[int], None]:
        """Without a terminal: a line once so many seconds have passed since the last one."""
        began = said = time.monotonic()
        finished = 0

        def advance(done: int) -> None:
            nonlocal said, finished
            finished, now = finished + done, time.monotonic()
            if not self.silent and now - said >= self.patience:
                said = now
                left = duration((now - began) / max(finished, 1) * (total - finished))
                print(f"{title}: {finished:,} of {total:,}, {left} left", file=sys.stderr, flush=True)

        return advance
