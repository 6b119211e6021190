"""Reading only what is a file, writing whole or not at all, and never over what a command reads."""

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
"""Stands in every file that a command writes where the user names it, so that it can be replaced by the next one."""
_LOOKED_AT = 2**20
"""Bytes at either end of a file in which the mark is searched."""

_inputs: ContextVar[frozenset[tuple[int, int]]] = ContextVar("inputs", default=frozenset())


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and number of a file, the same for all of its names; None where there is none."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


@contextlib.contextmanager
def reading(*paths: Path) -> Iterator[None]:
    """While this is open, no file of `paths` is replaced, under whatever name it is written."""
    known = {identity for path in paths if path.is_file() and (identity := _identity(path)) is not None}
    token = _inputs.set(_inputs.get() | known)
    try:
        yield
    finally:
        _inputs.reset(token)


def check_outputs(argument: str, outputs: Iterable[Path], inputs: Iterable[Path] = ()) -> None:
    """UsageError, before any work, for the first output that must not be written.

    Refused are a path that holds bytes that are not UTF-8, one that is there and is not a file, one of the inputs under
    any of its names, and a file that mereo did not write.

    Args:
        argument: the option that names the outputs.
        outputs: files to be written; those that are not there yet pass.
        inputs: files that the command reads.
    """
    inputs = [path for path in inputs if path.is_file()]
    with reading(*inputs):
        for path in outputs:
            check_name(argument, path)
            _check_target(path, f"{argument} is {path}")
            if path.exists() and not _is_ours(path):
                raise UsageError(f"{argument} is {path}, a file that mereo did not write; remove it or name another.")


def check_name(argument: str, path: Path | str) -> None:
    """UsageError for the name of an output that holds NUL or bytes that are not UTF-8: it could not be read back."""
    text = str(path)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{argument} is {text!r}, which is not UTF-8; name a path that is.") from None
    if "\0" in text:
        raise UsageError(f"{argument} is {text!r}; the name of a file cannot hold NUL.")


def _check_target(path: Path, what: str) -> Path:
    """The file behind a path; UsageError where it is an input, or there and not a file."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise UsageError(f"{what}: it is there and is not a file; name a file.")
    if (identity := _identity(target)) is not None and identity in _inputs.get():
        raise UsageError(f"{what}, which is one of the inputs; name another file.")
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
    # Opening a pipe waits for a writer, unless it is told not to.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UsageError(f"{path} is not a regular file; name one.")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | Path, most: int) -> bytes:
    """The content of a regular file; UsageError beyond `most` bytes or for anything that is not a file."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UsageError(f"{path} is longer than {most:,} bytes; it is not a file that mereo writes.")
    return content


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Callable[[bytes], None]]:
    """A file written piece by piece under another name, which takes its own when the block ends without an error.

    A link is followed. UsageError for a path that is an input of the command, or that is there and is no file:
    replacing a device would take it away.
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
    """Write a file so that at any moment either the old or the new content is there, whole; see `writing`."""
    with writing(path) as write:
        # Text may hold the name of a file, and that may hold bytes that are no text.
        write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> MereoError:
    """The error for a file that could not be written."""
    remedy = "make room there" if error.errno in _FULL else "name a folder that can be written"
    # Where a folder is wanted, "File exists" means that a file is in its place.
    reason = os.strerror(errno.ENOTDIR) if isinstance(error, FileExistsError) else error.strerror or error
    return MereoError(f"cannot write {path}: {reason}. The files written before are untouched; {remedy}.")
