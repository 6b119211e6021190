"""Handles paths from users safely: never waits for a pipe, opens a device or fails on a strange name."""

import os
import stat
from pathlib import Path
from typing import BinaryIO, Literal

from mereo.errors import UsageError


def user_path(argument: str, value: str | Path) -> Path:
    """A path as the user gave it, with ~ expanded.

    Raises:
        UsageError: for ~ of an unknown user, for NUL, and for text that no file name can hold.
    """
    text = str(value)
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise UsageError(f"{argument} is {text!a}, which has a lone surrogate; give a valid file name.") from None
    if "\0" in text:
        raise UsageError(f"{argument} is {text!a}, which has a NUL; give a valid file name.")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UsageError(f"{argument} is {text!r}, and there is no such user; write the folder in full.") from None


def kind_of(path: Path) -> Literal["folder", "file", "other"] | None:
    """The kind of file at a path, links followed: "other" is a pipe, a device or a socket, None is nothing.

    Raises:
        UsageError: for a name that is too long, or a link that leads to itself.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(f"the path {str(path)[:200]!r} cannot be used: {error.strerror}; give another one.") from error
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        OSError: for a pipe, a device, a socket or a folder, without waiting; and if it cannot be opened.
    """
    # Checked before opening, because opening can already act on a device, and again after it, because the path may
    # change.
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("not a regular file")
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("not a regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise
