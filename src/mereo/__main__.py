"""`mereo` and `python -m mereo`: the command line. Ctrl-C always ends it with one line and exit code 1.

A short command spends most of its time importing. There Python may swallow a KeyboardInterrupt (in a library that tries
an import and catches everything, or in a destructor) or print a traceback. So during an import Ctrl-C ends the process
at once; otherwise it raises as usual, so that files are closed and child processes end. This module imports only what
Python has already imported at startup.
"""

import gc
import os
import signal
import sys
from types import FrameType
from typing import Any, NoReturn

_IMPORTS = "<frozen importlib"
"""Start of the file names of the import system."""


def _end() -> NoReturn:
    """Exit at once with the message of a stopped command."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:
        pass
    os.write(2, b"\nmereo: error: stopped. Continue a training from its last checkpoint with --resume.\n")
    os._exit(1)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORTS):
            return True
        frame = frame.f_back
    return False


def _interrupted(_: int, frame: FrameType | None) -> None:
    if _importing(frame):
        _end()
    raise KeyboardInterrupt


def _unraisable(event: Any) -> None:
    # Raised in a destructor or a callback, where nothing can catch it.
    if issubclass(event.exc_type, KeyboardInterrupt):
        _end()
    sys.__unraisablehook__(event)


def main() -> int:
    """Run the command line of this process and return its exit code."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if the shell ignores Ctrl-C
            signal.signal(signal.SIGINT, _interrupted)
            sys.unraisablehook = _unraisable
        from mereo.cli.main import main as run

        code = run()
        # Nothing is left to do but exit. Looking for garbage there takes a quarter of the time of a short command; but
        # Triton counts its objects at exit, and would report the ones left.
        if "triton" not in sys.modules:
            gc.freeze()
        if signal.getsignal(signal.SIGINT) is _interrupted:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return code
    except KeyboardInterrupt:
        _end()


if __name__ == "__main__":
    sys.exit(main())
