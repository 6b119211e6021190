"""How far a long evaluation is: a bar on a terminal, a line a stage when piped, on standard error."""

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
            yield (lambda done: bar.advance(task, done)) if bar is not None else (lambda done: None)
        finally:
            if bar is not None:
                bar.stop()
        if not self.silent:
            print(f"{title}: {duration(time.monotonic() - began)}", file=sys.stderr, flush=True)
