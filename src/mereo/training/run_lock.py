"""A lock that prevents a second process from writing to a folder, released when the process that holds it ends.

It is a lock of the operating system (`flock`, on Windows `msvcrt.locking`) on a file in the folder, so a killed process
leaves no lock behind. Linux passes it on to NFS servers, where it works across machines; a warning is printed if the
file system has no locks. The file itself only names the holder.
"""

import json
import os
import socket
import sys
import time
import warnings
from pathlib import Path

from mereo.errors import UsageError
from mereo.files import cannot_write

LOCK_NAME = "run.lock"
_FAR = 2**30  # on Windows a locked byte cannot be read, so it is beyond the content
_held: set[int] = set()


class LockedError(UsageError):
    """Another process is training in the folder."""


class NoLocksError(OSError):
    """The file system has no locks."""


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> bool:
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        os.lseek(descriptor, 0, os.SEEK_SET)
        return True
else:
    import fcntl

    def _lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            raise NoLocksError(error.errno, error.strerror) from error
        return True

    def _close_in_child() -> None:
        # A child process that outlives its parent would keep the lock.
        for descriptor in _held:
            os.close(descriptor)
        _held.clear()

    os.register_at_fork(after_in_child=_close_in_child)


class RunLock:
    """The lock of one folder, which must exist: of a run, or of an export that is not checked yet.

    Raises `LockedError` with process, host and time of the holder if it is locked.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK_NAME
        self._descriptor = self._open()
        _held.add(self._descriptor)
        holder = {"process": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        try:
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, json.dumps(holder).encode())
        except OSError as error:
            self.release()
            raise cannot_write(self.path, error) from error

    def _open(self) -> int:
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                locked = _lock(descriptor)
            except NoLocksError as error:
                message = f"{self.path} cannot be locked ({error.strerror}); do not let a second process write there."
                warnings.warn(message, UserWarning, stacklevel=4)
                return descriptor
            if not locked:
                refusal = _refusal(self.path.parent, descriptor)
                os.close(descriptor)
                raise refusal
            # The last holder may have removed the file after it was opened here.
            if _same(self.path, descriptor):
                return descriptor
            os.close(descriptor)

    def release(self) -> None:
        """Remove the file and unlock."""
        if sys.platform != "win32":
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)
        _held.discard(self._descriptor)
        if sys.platform == "win32":
            self.path.unlink(missing_ok=True)


def check_unlocked(folder: Path) -> None:
    """`LockedError` if another process trains in a folder. It may start to at any time afterwards."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR)
    except OSError:
        return  # no process has locked it
    try:
        free = _lock(descriptor)
    except NoLocksError:
        free = True
    error = None if free else _refusal(folder, descriptor)
    os.close(descriptor)  # which unlocks it
    if error is not None:
        raise error


def is_abandoned(folder: Path) -> bool:
    """Whether a folder was locked by a process that was killed; False if the file system has no locks."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR)
    except OSError:
        return False
    try:
        return _lock(descriptor)
    except NoLocksError:
        return False
    finally:
        os.close(descriptor)


def _refusal(folder: Path, descriptor: int) -> LockedError:
    return LockedError(
        f"{folder} is being trained {_holder(descriptor)}; wait for it to end, or choose another --name."
    )


def _same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _holder(descriptor: int) -> str:
    """The holder of the lock as named in the file."""
    try:
        content = json.loads(os.read(descriptor, 1000))
        return f"by process {content['process']} on {content['host']} since {content['since']}"
    except (OSError, ValueError, LookupError, TypeError):
        return "by another process"
