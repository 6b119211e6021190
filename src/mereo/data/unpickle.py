"""Reads pickles of plain arrays without letting pickle call anything.

CIFAR is published as pickles. The reader resolves the few names that rebuild an array to classes of its own and refuses
all others, so that no file can run code. Numbers, text, lists and dictionaries need no names.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mereo.data.regular import open_regular

_LARGEST = 2**28
"""Largest file in bytes; a batch of CIFAR-10 has 31 MB, CIFAR-100's training file 155 MB."""


class _Type:
    """Replaces the element type of an array while its pickle is read."""

    def __init__(self, letters: str = "", *flags: object) -> None:
        if letters not in ("u1", "i4", "i8"):
            raise pickle.UnpicklingError(f"it has an array of type {letters!r}")
        self.letters, self.order = letters, "<"

    def __setstate__(self, state: Any) -> None:
        self.order = ">" if state[1] == ">" else "<"


class _Array:
    """Replaces an array, so that numpy's class is never called with arguments from a file."""

    def __init__(self, *protocol: object) -> None:
        self.values: npt.NDArray[Any] = np.empty(0, dtype=np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, columns_first, content = state
        content = content.encode("latin1") if isinstance(content, str) else content
        values = np.frombuffer(content, dtype=np.dtype(kind.order + kind.letters))
        self.values = values.reshape(shape, order="F" if columns_first else "C")


class _Name:
    """Replaces `numpy.ndarray`, an argument that is not used."""


def _encode(text: str, encoding: str) -> bytes:
    """Protocols below 3 write bytes as text."""
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Name,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Array for core in ("core", "_core")},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not part of an array")
        return _ALLOWED[module, name]


def load_arrays(path: Path) -> dict[str, Any]:
    """The dictionary of arrays, lists and texts in a pickle.

    Raises:
        OSError: if it is not a regular file.
        ValueError: for a pickle of anything else, or a damaged one.
    """
    with open_regular(path) as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ValueError(f"{path.name} has more than the limit of {_LARGEST} bytes")
    try:
        value = _Unpickler(io.BytesIO(content), encoding="latin1").load()
    except MemoryError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly any exception
        raise ValueError(f"{path.name} is not a pickle of plain arrays: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} holds a value of type {type(value).__name__}")
    return {str(key): entry.values if isinstance(entry, _Array) else entry for key, entry in value.items()}
