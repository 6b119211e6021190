"""A limit on the memory that several threads use together."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Budget:
    """Lets work start only while the bytes of all work in progress stay within a limit.

    Work that exceeds the limit by itself waits until nothing else runs, and then runs without other work.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._reset()
        if hasattr(os, "register_at_fork"):
            # After a fork no other thread exists in the child that could release its share.
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._taken, self._free = 0, threading.Condition()

    @contextmanager
    def take(self, size: int) -> Iterator[None]:
        """Hold `size` bytes of the budget; waits for them."""
        condition = self._free
        with condition:
            condition.wait_for(lambda: not self._taken or self._taken + size <= self.limit)
            self._taken += size
        try:
            yield
        finally:
            with condition:
                self._taken -= size
                condition.notify_all()
