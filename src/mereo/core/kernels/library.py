"""Loads the library compiled from the C++ files of this folder when mereo was built, or gives the reason if missing.

It is plain C: no header of torch, no compiler at run time. Installing mereo builds it if a C++ compiler is found;
otherwise the reason is in a text file in its place, and in `missing`.
"""

import ctypes
import hashlib
from pathlib import Path
from typing import Any

from torch import Tensor

_HERE = Path(__file__).parent
SOURCES = sorted([*_HERE.glob("*.cpp"), *_HERE.glob("*.hpp")])
LIBRARY = _HERE / "_library.so"
NOTE = _HERE / "_library.txt"
"""A note of the build: the digest of the source that it compiled, or why it compiled nothing."""

REMEDY = "install a C++ compiler and mereo again (in a checkout: pip install -e .)"


def digest() -> str:
    """A digest of the source, so that a library built from another one is recognised."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()


def _load() -> tuple[ctypes.CDLL | None, str | None]:
    note = NOTE.read_text().strip() if NOTE.is_file() else "mereo was installed without building it"
    if not LIBRARY.is_file():
        return None, f"the compiled library is missing: {note}; {REMEDY}"
    if note != digest():
        return None, f"the compiled library is older than its source; {REMEDY}"
    try:
        return ctypes.CDLL(str(LIBRARY)), None
    except OSError as error:
        return None, f"the compiled library does not load ({error}); {REMEDY}"


_library, missing = _load()
"""The library, and why it cannot be used (None if it can)."""


class Entry:
    """A function of the library, for one of the instruction sets that it was compiled for.

    Raises MemoryError if its working memory cannot be allocated.
    """

    def __init__(self, loaded: ctypes.CDLL, name: str, arguments: tuple[type, ...], level: int) -> None:
        self._loaded, self._name, self._arguments = loaded, name, arguments
        self._function = loaded[f"{name}_{level}"]
        self._function.argtypes, self._function.restype = arguments, ctypes.c_int

    def at_level(self, level: int) -> "Entry":
        """The same function for another instruction set."""
        return Entry(self._loaded, self._name, self._arguments, level)

    def __call__(self, *values: Any) -> None:
        if self._function(*values):
            pairs = zip(values, self._arguments, strict=True)
            sizes = " x ".join(str(value) for value, kind in pairs if kind is ctypes.c_int64)
            raise MemoryError(f"{self._name} could not allocate working memory; its sizes are {sizes}.")


def entry(name: str, *arguments: type) -> Entry | None:
    """A function of the library, compiled for the best instruction set that this processor has; None without it."""
    return None if _library is None else Entry(_library, name, arguments, _library.mereo_isa())


def at(x: Tensor | None) -> int | None:
    """The address of the entries of a tensor, for an argument that is a pointer."""
    return None if x is None else x.data_ptr()
