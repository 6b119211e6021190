"""The number of threads of a training on a processor that other programs may use too.

Threads that share a core wait for each other, so that beside other programs two of them can take ten times as long as
one. A training of a given time therefore measures its steps and takes the number of threads that is fastest now. A
training of a number of epochs keeps its threads, because sums depend on them.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

import torch

WINDOW = 0.3
"""Seconds of steps that are measured together."""
LEAST_WAIT, COST = 3.0, 20
"""Least seconds until another number of threads is tried again, also as a multiple of the cost of the last try."""


@contextmanager
def threads_kept() -> Iterator[None]:
    """Restores the number of threads afterwards."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def _busy() -> bool:
    """Whether the programs that run would fill the cores without this one."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] >= (os.cpu_count() or 1)


class Threads:
    """Takes the number of threads with which steps are fastest: all, a half, a quarter ... or one of them.

    Args:
        device: of the training; only a processor has threads to choose.
        chosen: whether the number may be changed; a user's OMP_NUM_THREADS is kept in any case.
    """

    def __init__(self, device: torch.device, *, chosen: bool) -> None:
        most = torch.get_num_threads()
        free = chosen and device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ
        self.counts = [most >> halved for halved in range(most.bit_length())] if free else [most]
        # Beside many other programs one thread is the likely answer, and steps with all of them would take long.
        self.home = len(self.counts) - 1 if len(self.counts) > 1 and _busy() else 0
        self.place, self.direction = 0, 1 if self.home == 0 else -1
        self._use(self.home)
        self.seconds: dict[int, float] = {}
        self.steps, self.spent, self.due = 0, 0.0, 0.0

    def took(self, seconds: float) -> None:
        """Count a step, and change the number of threads where another one is faster or is to be tried."""
        if len(self.counts) == 1:
            return
        self.steps, self.spent = self.steps + 1, self.spent + seconds
        if self.spent < WINDOW:
            return
        mean, now = self.spent / self.steps, monotonic()
        if self.place != self.home:  # a try
            extra = self.spent - self.steps * self.seconds[self.home]
            if extra > 0:
                self.due, self.direction = now + max(COST * extra, LEAST_WAIT), -self.direction
        self.seconds[self.place], self.steps, self.spent = mean, 0, 0.0
        self.home = min(self.seconds, key=self.seconds.__getitem__)
        self._use(self.home if now < self.due else self._neighbour())

    def _neighbour(self) -> int:
        """The next number to try: further in the direction that helped, else back."""
        place = self.home + self.direction
        return place if 0 <= place < len(self.counts) else self.home - self.direction

    def _use(self, place: int) -> None:
        if place != self.place:
            self.place = place
            torch.set_num_threads(self.counts[place])


def use_fastest(device: torch.device, measure: Callable[[], float]) -> None:
    """Set the number of threads with which a measured time is shortest, trying fewer while that helps.

    Args:
        device: of the training.
        measure: returns the time.
    """
    counts, least = Threads(device, chosen=True).counts, math.inf
    for place, count in enumerate(counts):
        torch.set_num_threads(count)
        if (seconds := measure()) > least:
            torch.set_num_threads(counts[place - 1])
            return
        least = seconds
