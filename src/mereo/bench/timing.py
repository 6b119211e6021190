"""Timing: rounds A B C A B C ... of all contenders, wall and CPU time of each, medians and quartiles."""

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

SHORTEST = 1e-3
"""Seconds that one sample should last; shorter work is repeated within it."""


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Clock:
    """Measures time.

    Attributes:
        wall: seconds that passed.
        cpu: seconds that all threads of this process worked.
        settle: waits until the device has finished its work.
    """

    wall: Callable[[], float] = time.perf_counter
    cpu: Callable[[], float] = time.process_time
    settle: Callable[[], object] = _nothing

    def time(self, work: Callable[[], object], repeat: int = 1) -> tuple[float, float]:
        """(wall, CPU) seconds of one call, the mean of `repeat`."""
        self.settle()
        cpu, wall = self.cpu(), self.wall()
        for _ in range(repeat):
            work()
        self.settle()
        return (self.wall() - wall) / repeat, (self.cpu() - cpu) / repeat


@dataclass(frozen=True)
class Quartiles:
    """Median and quartiles of samples, linearly interpolated."""

    median: float
    low: float
    high: float
    count: int


def quartiles(samples: Sequence[float]) -> Quartiles:
    """Median and quartiles of at least one sample."""
    low, median, high = np.quantile(samples, (0.25, 0.5, 0.75)).tolist()
    return Quartiles(median, low, high, len(samples))


@dataclass
class Samples:
    """Seconds of one contender, a pair a round."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def add(self, pair: tuple[float, float]) -> None:
        """One more round."""
        self.wall.append(pair[0])
        self.cpu.append(pair[1])


@contextmanager
def quiet() -> Iterator[None]:
    """Without the garbage collector, which would slow down one contender or the other."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """PyTorch on `count` threads; the previous number is restored."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def interleave(
    work: Mapping[str, Callable[[], object]],
    *,
    seconds: float,
    least: int,
    most: int = 1000,
    clock: Clock | None = None,
) -> dict[str, Samples]:
    """Time all in turn, so that a disturbance of the machine affects all.

    Args:
        work: name -> call, already warmed up; one more call here determines the repetitions in a sample.
        seconds: to spend on each contender; no round begins after `seconds` times the number of contenders.
        least, most: number of rounds.
        clock: measures time.
    """
    clock = clock or Clock()
    samples = {name: Samples() for name in work}
    with quiet():
        repeats = {name: max(1, math.ceil(SHORTEST / max(clock.time(call)[0], 1e-9))) for name, call in work.items()}
        began = clock.wall()
        for done in range(most):
            if done >= least and clock.wall() - began > seconds * len(work):
                break
            for name, call in work.items():
                samples[name].add(clock.time(call, repeats[name]))
    return samples
