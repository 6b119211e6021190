"""ONNX Runtime for browsers: two files of the npm package onnxruntime-web, checked by their hashes.

They are taken from the cache, from an installed copy in node_modules, or from `npm pack`, in this order.
"""

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from mereo.errors import MereoError
from mereo.files import write_atomically

PACKAGE, VERSION = "onnxruntime-web", "1.30.0"
FILES = {
    "ort.wasm.bundle.min.mjs": "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    "ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
"""SHA-256 of the files in the package's folder `dist`."""
_LARGEST = 2**25
_SECONDS = 300
"""Longest time to wait for npm."""


def cache_folder() -> Path:
    """Where the files are kept between exports."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "mereo" / f"{PACKAGE}-{VERSION}"


def _installed() -> Iterator[Path]:
    """Folders that may hold the files: the cache, then node_modules of the working folder and of those above it."""
    yield cache_folder()
    for folder in (Path.cwd(), *Path.cwd().parents):
        yield folder / "node_modules" / PACKAGE / "dist"


def _read(folder: Path) -> dict[str, bytes] | None:
    """The files of a folder; None unless all are there with the expected hashes."""
    contents = {}
    for name, expected in FILES.items():
        path = folder / name
        try:
            if not path.is_file() or path.stat().st_size > _LARGEST:
                return None
            contents[name] = path.read_bytes()
        except OSError:
            return None
        if hashlib.sha256(contents[name]).hexdigest() != expected:
            return None
    return contents


def _missing(reason: str) -> MereoError:
    return MereoError(
        f"--to page needs {PACKAGE} {VERSION}, and {reason}. With a network, run `npm install {PACKAGE}@{VERSION}` here"
        f" and export again; without one, copy {' and '.join(FILES)} of its folder dist to {cache_folder()}."
    )


def _pack(folder: Path) -> Path:
    """Download the package with npm; MereoError where that fails."""
    npm = shutil.which("npm")
    if npm is None:
        raise _missing("npm, which downloads it, is not installed")
    command = [npm, "pack", f"{PACKAGE}@{VERSION}", "--silent", "--pack-destination", str(folder)]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise _missing(f"npm did not finish in {_SECONDS} s") from None
    except OSError as error:
        raise _missing(f"npm could not be run ({error.strerror})") from error
    packed = sorted(folder.glob("*.tgz"))
    if done.returncode or not packed:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise _missing(f"npm could not download it ({lines[0] if lines else f'exit code {done.returncode}'})")
    return packed[0]


def _unpack(archive: Path) -> dict[str, bytes]:
    contents = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = Path(member.name).name
                if name in FILES and member.name == f"package/dist/{name}" and member.size <= _LARGEST:
                    file = tar.extractfile(member)
                    contents[name] = b"" if file is None else file.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise _missing("the package that npm downloaded is not readable") from error
    for name, expected in FILES.items():
        if hashlib.sha256(contents.get(name, b"")).hexdigest() != expected:
            raise _missing(f"the hash of {name} in the package that npm downloaded is wrong")
    return contents


def runtime_files(say: Callable[[str], None] = lambda line: None) -> dict[str, bytes]:
    """The contents of `FILES` by name, downloaded once; MereoError if they cannot be obtained."""
    for folder in _installed():
        if (contents := _read(folder)) is not None:
            return contents
    say(f"downloading {PACKAGE} {VERSION} with npm (33 MB), once")
    with tempfile.TemporaryDirectory() as temporary:
        contents = _unpack(_pack(Path(temporary)))
    try:
        for name, content in contents.items():
            write_atomically(cache_folder() / name, content)
    except MereoError as error:
        say(f"not kept for the next export: {error}")
    return contents
