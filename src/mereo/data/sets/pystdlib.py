"""The sources of Python's own standard library as bytes: text that is on every machine.

All files *.py below the folder of the standard library, except installed packages, tests, files generated when
Python was built, and files above 1 MiB. They are sorted by path, their split follows from the SHA-256 of
the path. They differ between versions of Python, so a run records a digest of them.
"""

import functools
import os
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mereo.data.registry import register_dataset

if TYPE_CHECKING:
    from mereo.data.load import Splits, Wanted
    from mereo.data.text import Text

LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib-dynload"}
GENERATED = ("_sysconfigdata", "sitecustomize", "usercustomize")
LARGEST = 2**20


@functools.cache
def find_files() -> tuple[tuple[str, Path, int], ...]:
    """Name, path and size of each file, in order."""
    home = Path(sysconfig.get_path("stdlib"))
    modules = []
    for folder, folders, files in os.walk(home):
        folders[:] = [name for name in folders if name not in LEFT_OUT and not name.startswith(("config-", "."))]
        for file in files:
            path = Path(folder) / file
            if file.endswith(".py") and not file.startswith(GENERATED) and (size := path.stat().st_size) <= LARGEST:
                modules.append((path.relative_to(home).as_posix(), path, size))
    return tuple(sorted(modules))


class _Counts(Mapping[str, int]):
    """Bytes of each split, counted when they are first asked for."""

    @functools.cached_property
    def _counts(self) -> dict[str, int]:
        from mereo.data.text_splits import SPLITS, split_of

        counts = dict.fromkeys(SPLITS, 0)
        for name, _, size in find_files():
            counts[split_of(name)] += size + 1
        return counts

    def __getitem__(self, split: str) -> int:
        return self._counts[split]

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)


@functools.cache
def read() -> "Text":
    """The sources of this Python; nothing is below the data root."""
    from mereo.data.text import join_files
    from mereo.errors import MereoError

    text = join_files((name, path.read_bytes()) for name, path, _ in find_files())
    if not all(len(part) for part in text.splits.values()):
        raise MereoError(
            f"pystdlib was not found: {sysconfig.get_path('stdlib')} has no sources; use a Python with its sources, or"
            " give a file or folder of text."
        )
    return text


def load(wanted: "Wanted") -> "Splits":
    """Windows of the sources."""
    from mereo.data.text import windows_of

    return windows_of(read)(wanted)


register_dataset(
    "pystdlib",
    summary="the sources of this Python's standard library as bytes",
    source="https://github.com/python/cpython, the version that runs (PSF licence)",
    num_classes=256,
    in_chans=1,
    size=None,
    splits=_Counts(),
    load=load,
    counts="bytes",
    augment=(),
    fields=("tokens",),
)
