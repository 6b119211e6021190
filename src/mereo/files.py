"""Files are written whole or not at all."""

import errno
import os
import tempfile
from pathlib import Path

from mereo.errors import MereoError, UsageError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file so that at any moment either the old or the new content is there, whole.

    A link is followed. UsageError for a path that is there and is no file: replacing a device would take it away.
    """
    # Text may hold the name of a file, and that may hold bytes that are no text.
    content = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            raise UsageError(f"cannot write {path}: it is there and is not a file; name a file.")
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o644)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> MereoError:
    """What to say of a file that could not be written."""
    remedy = "make room there" if error.errno in _FULL else "name a folder that can be written"
    # Where a folder is wanted, "File exists" means that a file is in its place.
    reason = os.strerror(errno.ENOTDIR) if isinstance(error, FileExistsError) else error.strerror or error
    return MereoError(f"cannot write {path}: {reason}. The files written before are untouched; {remedy}.")
