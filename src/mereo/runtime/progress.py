"""Progress of long work: a bar on a terminal, otherwise a line whenever a minute has passed without one."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO, TypeVar

from mereo.escape import for_terminal
from mereo.runtime.printing import say
from mereo.runtime.text import duration

T = TypeVar("T")
MANY = 2000
"""Entries of a reading from which on its progress is shown."""
_SILENT: ContextVar[bool] = ContextVar("silent", default=False)


class Reporter:
    """Shows the progress of successive pieces of work.

    Args:
        silent: print nothing.
        output: the stream of lines and the bar: "stderr", so that results can be piped, or "stdout".
        patience: without a terminal, seconds between two lines of progress.
    """

    def __init__(self, *, silent: bool = False, output: str = "stderr", patience: float = 60.0) -> None:
        self.silent, self.output, self.patience = silent, output, patience
        self.live = not silent and sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None
        self._title, self._total, self._done, self._first = "", 0, 0, 0
        self._began = self._last_line = 0.0

    @property
    def _stream(self) -> TextIO:
        # Looked up each time, because the streams may be replaced while a reporter exists.
        return sys.stdout if self.output == "stdout" else sys.stderr

    def say(self, line: str) -> None:
        """Print one line, above the bar if there is one."""
        if self.silent:
            return
        if self._bar is not None:
            self._bar.console.print(for_terminal(line, lines=True), highlight=False, markup=False)
        else:
            say(line, file=self._stream)
        self._last_line = time.monotonic()

    def begin(self, title: str, total: int, done: int = 0) -> None:
        """Start work of `total` parts; `done` of them were finished earlier."""
        self.stop()
        self._title, self._total, self._done, self._first = title, total, done, done
        self._began = self._last_line = time.monotonic()
        if self.live:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(), transient=True, console=Console(file=self._stream),
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task(title, total=total, completed=done, rate="")

    def advance(self, count: int = 1, *, title: str | None = None, rate: str = "") -> None:
        """Finish `count` parts more; the title and the rate may change with them."""
        self._done += count
        self._title = self._title if title is None else title
        if self._bar is not None:
            self._bar.update(self._task, advance=count, description=self._title, rate=rate)

    def due(self) -> bool:
        """Whether a line of progress is due: there is no bar, and `patience` seconds passed without a line."""
        return not self.silent and not self.live and time.monotonic() - self._last_line >= self.patience

    def left(self) -> str:
        """The time left, estimated from the time that the parts finished so far took."""
        seconds = (time.monotonic() - self._began) / max(self._done - self._first, 1)
        return duration(seconds * (self._total - self._done))

    def say_if_due(self) -> None:
        """Print how many parts are done, if a line is due."""
        if self.due():
            self.say(f"{self._title}: {self._done:,} of {self._total:,}, {self.left()} left")

    def stop(self) -> None:
        """Remove the bar from the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    @contextmanager
    def stage(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        """Work of `total` parts with a closing line; call what it yields with the number of newly finished parts."""

        def advance(count: int) -> None:
            self.advance(count)
            self.say_if_due()

        self.begin(title, total)
        try:
            yield advance
        finally:
            self.stop()
        self.say(f"{title}: {duration(time.monotonic() - self._began)}")

    def reach(self, title: str, done: int, total: int) -> None:
        """Show that `done` of `total` parts are finished; work under another title, or after the last part, is new."""
        if title != self._title or self._done >= self._total:
            self.begin(title, total)
        self.advance(done - self._done)
        self.say_if_due()
        if done >= total:
            self.stop()

    def measured(self, line: str, done: int, total: int) -> None:
        """Print one line for each result, with the number of finished cases; the bar follows it on a terminal."""
        if not self.live:
            self.say(f"[{done}/{total}] {line}")
            return
        if self._bar is None:
            self.begin("measuring", total)
        self.say(line)
        self.advance(done - self._done)


@contextmanager
def silenced(silent: bool) -> Iterator[None]:
    """With `silent`, `followed` shows nothing."""
    token = _SILENT.set(silent or _SILENT.get())
    try:
        yield
    finally:
        _SILENT.reset(token)


def followed(entries: Iterable[T], title: str, total: int) -> Iterator[T]:
    """The entries of a slow reading; the progress of many is shown, every ten seconds without a terminal."""
    reporter = Reporter(silent=total < MANY or _SILENT.get(), patience=10.0)
    reporter.begin(title, total)
    try:
        for entry in entries:
            yield entry
            reporter.advance()
            reporter.say_if_due()
    finally:
        reporter.stop()
