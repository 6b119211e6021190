"""Storage of decoded images: in memory while they fit the budget, else in a memory-mapped file."""

import contextlib
import math
import os
import shutil
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from mereo.data.regular import user_path
from mereo.errors import MereoError, UsageError
from mereo.runtime.memory import available_memory


class Storage:
    """Allocates uint8 tensors and keeps track of the remaining budget.

    Args:
        memory_budget: bytes of all tensors in memory together; half of the available memory when None.
        cache_dir: folder, on a disk, for tensors that do not fit; the system's temporary folder when None. The files
            are unlinked at once, so that nothing is left when the process ends.
    """

    def __init__(self, memory_budget: int | None = None, cache_dir: str | Path | None = None) -> None:
        if memory_budget is not None and memory_budget < 0:
            raise UsageError(f"memory_budget is {memory_budget}; it must be at least 0 bytes.")
        self.left = available_memory() // 2 if memory_budget is None else memory_budget
        self.cache_dir = Path(tempfile.gettempdir()) if cache_dir is None else user_path("cache_dir", cache_dir)

    def allocate(self, *shape: int) -> Tensor:
        """An uint8 tensor of this shape, its content undefined."""
        size = math.prod(shape)
        if size <= self.left:
            self.left -= size
            return torch.empty(shape, dtype=torch.uint8)
        return self._mapped(size).view(shape)

    def _mapped(self, size: int) -> Tensor:
        try:
            self.cache_dir.mkdir(parents=True, exist_ok=True)
            # On a full disk, writing into the map would kill the process, so check first.
            free = shutil.disk_usage(self.cache_dir).free
            if free < size:
                raise MereoError(
                    f"the decoded images take {size / 1e9:.1f} GB, more than the memory budget, and cache_dir "
                    f"{self.cache_dir} has {free / 1e9:.1f} GB free; give a cache_dir with more space, or a"
                    " smaller img_size."
                )
            handle, name = tempfile.mkstemp(prefix="mereo-images-", dir=self.cache_dir)
            os.close(handle)
        except OSError as error:
            raise MereoError(f"cache_dir {self.cache_dir} cannot be written ({error}); give another one.") from error
        try:
            return torch.from_file(name, shared=True, size=size, dtype=torch.uint8)
        finally:
            with contextlib.suppress(OSError):  # Windows keeps a mapped file until the process ends
                Path(name).unlink()
