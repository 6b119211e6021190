"""Threads that decode the images requested next, into reusable blocks of memory.

Pillow releases the interpreter lock while it decodes and resizes, so threads use all cores, start at once and need no
copies between processes.
"""

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

BLOCK = 8
"""Images of one task."""
Pixels = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Decode = Callable[[int, Pixels], bool]


def default_workers() -> int:
    """This process's share of the cores of its machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    local_processes = os.environ.get("LOCAL_WORLD_SIZE", "1")  # set by torchrun and by accelerate
    return max(cores // max(int(local_processes) if local_processes.isdecimal() else 1, 1), 1)


class _Block(NamedTuple):
    """Decoded images uint8 (count, channels, height, width), and which of them could be read: bool (count,)."""

    pixels: Pixels
    readable: Flags


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
        self._decode, self._shape = decode, shape
        self._blocks = max(-(-ahead // BLOCK), 1)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="mereo-decode")
        self._free: list[_Block] = []
        self._pending: deque[tuple[Future[None], _Block, int]] = deque()
        self._expected: Indices = np.empty(0, dtype=np.int64)
        self._taken = self._scheduled = self._used = 0

    def expect(self, indices: Indices) -> None:
        """Announce that the images at `indices`, int64 (n,), are requested next in this order; replaces earlier
        ones."""
        begun = self._expected[self._taken : self._scheduled]
        if np.array_equal(begun, indices[: len(begun)]):  # images that are already decoded still come next
            self._scheduled = len(begun)
        else:
            for task, block, _ in self._pending:
                if not task.cancel():
                    wait([task])
                self._free.append(block)
            self._pending.clear()
            self._scheduled = self._used = 0
        self._expected, self._taken = indices.copy(), 0
        self._schedule()

    def take(self, indices: Indices) -> tuple[Pixels, Flags]:
        """The images at `indices`.

        Shapes: int64 (n,) -> uint8 (n, channels, height, width), bool (n,), whether each could be read.
        """
        pixels, readable = self._make(len(indices))
        if np.array_equal(self._expected[self._taken : self._taken + len(indices)], indices):
            self._collect(pixels, readable)
            return pixels, readable
        tasks = []
        for start in range(0, len(indices), BLOCK):
            part = slice(start, start + BLOCK)
            tasks.append(self._pool.submit(self._work, indices[part], pixels[part], readable[part]))
        wait(tasks)
        for task in tasks:
            task.result()
        return pixels, readable

    def _collect(self, pixels: Pixels, readable: Flags) -> None:
        """Copy the next expected images out of their blocks, waiting where they are not decoded yet."""
        filled = 0
        while filled < len(pixels):
            self._schedule()
            task, block, count = self._pending[0]
            task.result()
            part = min(count - self._used, len(pixels) - filled)
            pixels[filled : filled + part] = block.pixels[self._used : self._used + part]
            readable[filled : filled + part] = block.readable[self._used : self._used + part]
            filled, self._used = filled + part, self._used + part
            if self._used == count:
                self._free.append(block)
                self._pending.popleft()
                self._used = 0
        self._taken += len(pixels)
        self._schedule()

    def _schedule(self) -> None:
        while len(self._pending) < self._blocks and self._scheduled < len(self._expected):
            part = self._expected[self._scheduled : self._scheduled + BLOCK]
            block = self._free.pop() if self._free else self._make(BLOCK)
            task = self._pool.submit(self._work, part, block.pixels, block.readable)
            self._pending.append((task, block, len(part)))
            self._scheduled += len(part)

    def _make(self, count: int) -> _Block:
        return _Block(np.empty((count, *self._shape), dtype=np.uint8), np.empty(count, dtype=np.bool_))

    def _work(self, indices: Indices, pixels: Pixels, readable: Flags) -> None:
        for place, index in enumerate(indices.tolist()):
            readable[place] = self._decode(index, pixels[place])
