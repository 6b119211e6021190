"""Reads regular files only, writes files completely or not at all, and never overwrites the inputs of a command."""

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO

from mereo.errors import MereoError, UsageError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MARK = b"mereo"
"""Written into every output that the user names, so that a later command may replace the file."""
_LOOKED_AT = 2**20
"""Number of bytes at either end of a file that are searched for the mark."""

_inputs: ContextVar[frozenset[tuple[int, int]]] = ContextVar("inputs", default=frozenset())


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file, the same for all of its names; None if there is no file."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def reading(*paths: Path) -> Iterator[None]:
    """Inside this block no file of `paths` can be replaced, under any of its names."""
    known = {identity for path in paths if path.is_file() and (identity := _identity(path)) is not None}
    token = _inputs.set(_inputs.get() | known)
    try:
        yield
    finally:
        _inputs.reset(token)


def check_outputs(argument: str, outputs: Iterable[Path], inputs: Iterable[Path] = ()) -> None:
    """UsageError, before any work, for the first output that must not be written.

    Invalid outputs are paths that are not UTF-8, existing paths that are not files, any of the inputs under any of its
    names, and files that mereo did not write.

    Args:
        argument: the option that names the outputs.
        outputs: files to be written.
        inputs: files that the command reads.
    """
    inputs = [path for path in inputs if path.is_file()]
    with reading(*inputs):
        for path in outputs:
            check_name(argument, path)
            _check_target(path, f"{argument} is {path}")
            if path.exists() and not _is_ours(path):
                raise UsageError(
                    f"{argument} is {path}, a file that mereo did not write; remove it or choose another path."
                )


def check_name(argument: str, path: Path | str) -> None:
    """UsageError for the name of an output with NUL or bytes that are not UTF-8, because it could not be read back."""
    text = str(path)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{argument} is {text!r}, which is not UTF-8; choose a path that is.") from None
    if "\0" in text:
        raise UsageError(f"{argument} is {text!r}; a file name cannot contain NUL.")


def _check_target(path: Path, what: str) -> Path:
    """The file that a path leads to; UsageError for an input, or for an existing path that is not a file."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise UsageError(f"{what}: it exists and is not a file; choose another path.")
    if (identity := _identity(target)) is not None and identity in _inputs.get():
        raise UsageError(f"{what}, which is one of the inputs; choose another file.")
    return target


def _is_ours(path: Path) -> bool:
    """Whether a file is empty or carries the mark of one that mereo wrote."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(_LOOKED_AT)
            file.seek(max(size - _LOOKED_AT, 0))
            return size == 0 or _MARK in start or _MARK in file.read(_LOOKED_AT)
    except OSError:
        return False


def open_regular(path: str | Path) -> BinaryIO:
    """A file opened for reading bytes; UsageError for a pipe, a socket or a device, which might never answer."""
    # Opening a pipe waits for a writer unless O_NONBLOCK is set.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UsageError(f"{path} is not a regular file; choose one.")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def starts_with(path: Path, text: str) -> bool:
    """Whether a file begins with some text, such as the header of a table that mereo writes."""
    with open_regular(path) as file:
        return file.read(len(text.encode()) + 3).decode("utf-8-sig", errors="replace").startswith(text)


def read_regular(path: str | Path, most: int) -> bytes:
    """The content of a regular file; UsageError beyond `most` bytes or for anything that is not a file."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UsageError(f"{path} is longer than {most:,} bytes; it is not a file that mereo writes.")
    return content


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Callable[[bytes], None]]:
    """A file written piece by piece under a temporary name, and renamed when the block ends without an error.

    A link is followed. UsageError for a path that is an input of the command, or that exists and is not a file:
    replacing a device would remove it.
    """
    with _explained(path):
        target = _check_target(path, f"cannot write {path}")
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        # Without a buffer: closing one on a full disk would fail a second time.
        with os.fdopen(descriptor, "wb", buffering=0) as file:

            def write(content: bytes) -> None:
                left = memoryview(content)
                with _explained(path):
                    while left:
                        left = left[file.write(left) or 0 :]

            yield write
            with _explained(path):
                os.fsync(descriptor)
        with _explained(path):
            Path(name).chmod(0o644)
            Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file so that at any moment it has either the complete old or the complete new content; see `writing`."""
    with writing(path) as write:
        # Text may contain a file name, and that may contain bytes that are not text.
        write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> MereoError:
    """The error for a file that could not be written."""
    remedy = "free some space there" if error.errno in _FULL else "choose a writable folder"
    # For a folder, "File exists" means that there is a file of that name.
    reason = os.strerror(errno.ENOTDIR) if isinstance(error, FileExistsError) else error.strerror or error
    return MereoError(f"cannot write {path}: {reason}. Earlier files are unchanged; {remedy}.")
