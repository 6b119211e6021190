"""Reads arrays out of MATLAB files of version 5 without running or trusting anything in them.

A file is a header of 128 bytes and elements: a type, a number of bytes, and the bytes, padded to eight. A matrix is an
element that holds elements: flags, sizes, a name, then values, or the names and matrices of a struct's fields. An
element may be compressed. Only numbers and structs of them are read; sizes are compared with the bytes at hand before
anything is made of them.

Source: MathWorks, MAT-File Format, "Level 5 MAT-Files".
"""

import math
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mereo.data.regular import open_regular
from mereo.errors import UsageError

HEADER, VERSION = 128, 0x0100
MATRIX, COMPRESSED = 14, 15
STRUCT, NUMBERS = 2, range(6, 16)
"""Classes of a matrix that are read: structs, and arrays of floats and integers."""
TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
LARGEST = 2**29
"""Most bytes of a file, and of what it decompresses to; a batch of affNIST has 20 MB."""
_MOST_FIELDS = 1000

Arrays = dict[str, npt.NDArray[np.generic]]


def _elements(content: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """The type and the bytes of each element of a piece of a file."""
    place = 0
    while place + 8 <= len(content):
        kind, size = np.frombuffer(content[place : place + 8], f"{order}u4").tolist()
        start = place + 8
        if kind >> 16:  # up to four bytes follow a short tag
            kind, size, start = kind & 0xFFFF, kind >> 16, place + 4
            if size > 4:
                raise ValueError("an element of more bytes than its tag holds")
        if start + size > len(content):
            raise ValueError(f"an element of {size} bytes, of which {len(content) - start} are there")
        yield kind, content[start : start + size]
        padded = size if kind == COMPRESSED else -(-size // 8) * 8
        place = start + (4 if start == place + 4 else padded)


def _numbers(element: tuple[int, memoryview], order: str) -> npt.NDArray[np.generic]:
    kind, content = element
    if kind not in TYPES:
        raise ValueError(f"values of type {kind}")
    return np.frombuffer(content, np.dtype(order + TYPES[kind]))


def _matrix(content: memoryview, order: str, depth: int = 0) -> tuple[str, npt.NDArray[np.generic] | Arrays | None]:
    """The name and the value of a matrix; None for what is neither numbers nor one struct of them."""
    parts = _elements(content, order)
    flags, shape = (_numbers(next(parts), order) for _ in range(2))
    name = bytes(next(parts)[1]).decode("ascii")
    sizes = tuple(int(size) for size in shape)
    kind = int(flags[0]) & 0xFF
    if kind in NUMBERS:
        values = _numbers(next(parts), order)
        if min(sizes, default=0) < 0 or math.prod(sizes) != len(values):
            raise ValueError(f"sizes {sizes} for {len(values)} values")
        return name, values.reshape(sizes, order="F")
    if kind != STRUCT or math.prod(sizes) != 1 or depth:
        return name, None
    length = int(_numbers(next(parts), order)[0])
    names = bytes(next(parts)[1])
    if not 0 < length <= len(names) <= length * _MOST_FIELDS:
        raise ValueError(f"{len(names)} bytes of field names, {length} each")
    fields: Arrays = {}
    for place in range(0, len(names), length):
        word = names[place : place + length].partition(b"\0")[0].decode("ascii")
        inner, value = next(parts)
        if inner != MATRIX:
            raise ValueError(f"a field of type {inner}")
        array = _matrix(value, order, depth + 1)[1] if len(value) else None
        if isinstance(array, np.ndarray):
            fields[word] = array
    return name, fields


def read_matlab(path: Path) -> dict[str, npt.NDArray[np.generic] | Arrays]:
    """The arrays of a file, and its structs as dictionaries of arrays; whatever else it holds is left out.

    Raises:
        OSError: for what is not a regular file.
        UsageError: for another kind of file, a damaged one, and one of more than `LARGEST` bytes.
    """
    with open_regular(path) as file:
        content = memoryview(file.read(LARGEST + 1))
    try:
        if len(content) > LARGEST:
            raise ValueError(f"more than {LARGEST} bytes")
        order = {b"IM": "<", b"MI": ">"}.get(bytes(content[HEADER - 2 : HEADER]))
        if order is None or np.frombuffer(content[HEADER - 4 : HEADER - 2], f"{order}u2")[0] != VERSION:
            raise ValueError("no header of version 5")
        variables, room = {}, LARGEST
        for element in _elements(content[HEADER:], order):
            kind, inside = element
            if kind == COMPRESSED:
                unpacked = zlib.decompressobj().decompress(inside, room)
                if len(unpacked) == room:
                    raise ValueError(f"more than {LARGEST} bytes when unpacked")
                room -= len(unpacked)
                kind, inside = next(_elements(memoryview(unpacked), order))
            if kind == MATRIX:
                name, value = _matrix(inside, order)
                if value is not None:
                    variables[name] = value
        return variables
    except (ValueError, IndexError, OverflowError, StopIteration, RuntimeError, zlib.error) as error:
        reason = str(error) or "it ends early"
        raise UsageError(f"{path} is not a MATLAB file of version 5 that can be read: {reason}; replace it.") from error
