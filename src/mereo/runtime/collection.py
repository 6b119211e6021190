"""Garbage collection where it only costs time: during long imports, and at the end of short commands."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected(*, forever: bool = False) -> Iterator[None]:
    """Inside this block Python collects no garbage: it would look for some dozens of times during long imports.

    Args:
        forever: whether later collections, and the one at exit, pass over what the block made. A short command spends a
            quarter of its time at exit otherwise. Modules that count their objects at exit, such as Triton, must
            not be imported inside: they would report all of them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if forever:
            gc.freeze()
        if enabled:
            gc.enable()
