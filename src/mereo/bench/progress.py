"""What a run tells while it works: a bar on a terminal, else a line for what was measured."""

import sys
from typing import Any


class Progress:
    """Told of every measurement; on the error stream, so that tables can be piped."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, line: str, done: int, total: int) -> None:
        if not sys.stderr.isatty():
            print(f"[{done}/{total}] {line}", file=sys.stderr, flush=True)
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                TextColumn("measuring"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task("", total=total)
        self._bar.console.print(line, highlight=False, markup=False)
        self._bar.update(self._task, completed=done)

    def stop(self) -> None:
        """Take the bar off the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
