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

from mereo.data.encoded import Store
from mereo.data.stream.tar_index import TarIndex
from mereo.errors import UsageError

_HANDLES = 16
"""Number of files that each thread keeps open."""


class _Opened:
    """An open file that is closed when it is no longer needed."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("rb", buffering=0)
        # In a cycle of objects that are no longer needed, the file itself could be finalised first, with a warning.
        weakref.finalize(self, self.file.close)


class TarStore(Store):
    """The images of several tar files, or with `masks` their masks, one file after the other."""

    def __init__(self, tars: Sequence[Path], indices: Sequence[TarIndex], *, masks: bool = False) -> None:
        self._tars = list(tars)
        bare = next(
            (tar for tar, index in zip(tars, indices, strict=True) if masks and not len(index.mask_sizes)), None
        )
        if bare is not None:
            raise UsageError(f"{bare} has no masks, and other tar files have; add them.")
        self._starts = np.cumsum([0, *(len(index.offsets) for index in indices)])
        self._offsets = np.concatenate([index.mask_offsets if masks else index.offsets for index in indices])
        self._sizes = np.concatenate([index.mask_sizes if masks else index.sizes for index in indices])
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
