"""Images in tar files, read at random by offset."""

import io
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from mereo.data.stream.source import Store
from mereo.data.stream.tar_index import TarIndex

_HANDLES = 16
"""Number of files that each thread keeps open."""


class _Opened:
    """An open file that is closed when it is no longer needed."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("rb", buffering=0)
        # In a cycle of objects that are no longer needed, the file itself could be finalised first, with a warning.
        weakref.finalize(self, self.file.close)


class TarStore(Store):
    """The images of several tar files, one file after the other."""

    def __init__(self, tars: Sequence[Path], indices: Sequence[TarIndex]) -> None:
        self._tars = list(tars)
        self._starts = np.cumsum([0, *(len(index.offsets) for index in indices)])
        self._offsets = np.concatenate([index.offsets for index in indices])
        self._sizes = np.concatenate([index.sizes for index in indices])
        self._local = threading.local()

    def open(self, number: int) -> BinaryIO:
        file = self._handle(self._shard(number))
        file.seek(int(self._offsets[number]))
        size = int(self._sizes[number])
        content = file.read(size)
        if len(content) < size:
            raise OSError("the tar file has become shorter")
        return io.BytesIO(content)

    def name(self, number: int) -> str:
        return f"the image at byte {self._offsets[number]} of {self._tars[self._shard(number)]}"

    def groups(self, numbers: Tensor) -> Tensor:
        return torch.from_numpy(np.searchsorted(self._starts, numbers.numpy(), side="right") - 1)

    def _shard(self, number: int) -> int:
        return int(np.searchsorted(self._starts, number, side="right")) - 1

    def _handle(self, shard: int) -> BinaryIO:
        """The open file of this thread, so that no other thread moves its position."""
        handles: OrderedDict[int, _Opened] = self._local.__dict__.setdefault("handles", OrderedDict())
        if shard not in handles:
            if len(handles) >= _HANDLES:
                handles.popitem(last=False)
            handles[shard] = _Opened(self._tars[shard])
        handles.move_to_end(shard)
        return handles[shard].file
