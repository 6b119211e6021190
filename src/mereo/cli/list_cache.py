"""A cache of lists that take seconds to make, valid until a source of the package changes.

The networks, mechanisms, tasks and suites register themselves when they are imported, and importing them imports
PyTorch. So their lists are cached in the user's folder under a digest of every source file and the names of the bundled
weights: a list is read only by the very sources that made it. A process that has imported the register already, and may
have added to it, makes its list itself.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
PACKAGE = Path(__file__).parent.parent


def cache_file() -> Path:
    """The file of the cache."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "mereo" / "lists.json"


def digest(package: Path = PACKAGE) -> str:
    """A digest of the sources below a folder, and of the names of the bundled weights."""
    known = hashlib.blake2b(digest_size=16)
    for folder, folders, files in os.walk(package):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            if name.endswith((".py", ".safetensors")):
                path = os.path.join(folder, name)  # noqa: PTH118 - a thousand times
                content = b""
                if name.endswith(".py"):
                    with open(path, "rb") as file:  # noqa: PTH123
                        content = file.read()
                known.update(f"{path[len(str(package)) :]} {len(content)} ".encode(errors="surrogateescape"))
                known.update(content)
    return known.hexdigest()


def cached_list(key: str, make: Callable[[], T], register: str) -> T:
    """make(), or its cached result if the sources of the package are the same.

    Args:
        key: names the list.
        make: returns plain values: lists, dicts and texts.
        register: the module that fills the register; where it is imported already, the cache is not used.
    """
    if register in sys.modules:
        return make()
    try:
        path, sources = cache_file(), digest()
    except (OSError, RuntimeError):  # no home, or sources that cannot be read
        return make()
    lists: dict[str, T] = {}
    try:
        content = json.loads(path.read_text())
        if content["sources"] == sources:
            lists = dict(content["lists"])
    except (OSError, ValueError, TypeError, KeyError):
        pass
    if key in lists:
        return lists[key]
    made = make()
    from mereo.errors import MereoError
    from mereo.files import write_atomically

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"sources": sources, "lists": {**lists, key: made}}).encode())
    except (OSError, MereoError):  # a cache that cannot be written is not needed
        pass
    return made
