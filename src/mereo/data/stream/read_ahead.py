"""Threads that decode the images requested next.

Pillow releases the interpreter lock while it decodes and resizes, so threads use all cores, start at once and need no
copies between processes.
"""

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Decode = Callable[[int, Pixels], bool]


def default_workers() -> int:
    """This process's share of the cores of its machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    local_processes = os.environ.get("LOCAL_WORLD_SIZE", "1")  # set by torchrun and by accelerate
    return max(cores // max(int(local_processes) if local_processes.isdecimal() else 1, 1), 1)


class ReadAhead:
    """Decodes images by index, and announced ones ahead of time.

    It uses NumPy arrays, because threads cannot write to a tensor made in PyTorch's inference mode. The result of
    `take` depends only on its indices; announcements decide only when an image is decoded.

    Args:
        decode: (index, out) -> whether the image could be read; writes its pixels to `out`, from any thread.
        shape: (channels, height, width) of every image.
        ahead: largest number of decoded images kept ready.
        workers: number of threads.
    """

    def __init__(self, decode: Decode, shape: tuple[int, int, int], *, ahead: int, workers: int) -> None:
        self._decode, self._shape, self._limit = decode, shape, max(ahead, 1)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="mereo-decode")
        self._coming: deque[tuple[int, Future[Pixels | None]]] = deque()
        """The announced images that are being decoded, in order."""
        self._later: deque[int] = deque()
        """The announced images after those."""

    def expect(self, indices: Indices) -> None:
        """Announce that the images at `indices`, int64 (n,), are requested next in this order; replaces earlier
        ones."""
        begun = [index for index, _ in self._coming]
        if begun != indices[: len(begun)].tolist():  # otherwise images that are already decoded still come next
            for _, task in self._coming:
                task.cancel()
            self._coming.clear()
        self._later = deque(indices[len(self._coming) :].tolist())
        self._schedule()

    def take(self, indices: Indices) -> tuple[Pixels, Flags]:
        """The images at `indices`.

        Shapes: int64 (n,) -> uint8 (n, channels, height, width), bool (n,), whether each could be read.
        """
        pixels, readable = np.empty((len(indices), *self._shape), np.uint8), np.empty(len(indices), np.bool_)
        announced = chain((index for index, _ in self._coming), self._later)
        expected = all(index == next(announced, None) for index in indices.tolist())
        others = [] if expected else [self._pool.submit(self._work, index) for index in indices.tolist()]
        for place in range(len(indices)):
            if expected:
                self._schedule()
            image = (self._coming.popleft()[1] if expected else others[place]).result()
            readable[place] = image is not None
            if image is not None:
                pixels[place] = image
        self._schedule()
        return pixels, readable

    def _schedule(self) -> None:
        while self._later and len(self._coming) < self._limit:
            index = self._later.popleft()
            self._coming.append((index, self._pool.submit(self._work, index)))

    def _work(self, index: int) -> Pixels | None:
        out = np.empty(self._shape, dtype=np.uint8)
        return out if self._decode(index, out) else None
