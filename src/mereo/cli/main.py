"""The command `mereo`: finds the command, runs it, and turns errors into one line and an exit code.

Exit codes: 0 done, 1 failed or stopped, 2 invalid usage. A command imports what it needs when it runs.
"""

import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module

from mereo.errors import MereoError, UsageError, unknown
from mereo.escape import cut, for_terminal
from mereo.runtime.printing import say

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("mereo.cli.demo", "train on the digits in the package and explain the result"),
    "train": ("mereo.cli.train", "train a network on a data set or your own images"),
    "predict": ("mereo.cli.predict", "classify images"),
    "embed": ("mereo.cli.features", "write the features of images, for clustering or another model"),
    "search": ("mereo.cli.features", "find the images that are most similar to others"),
    "evaluate": ("mereo.cli.evaluate", "evaluate trained networks: accuracy, calibration, corruptions, attacks"),
    "explain": ("mereo.cli.explain", "show which parts of an image a prediction rests on"),
    "app": ("mereo.cli.app", "show networks on a page in the browser"),
    "reproduce": ("mereo.cli.reproduce", "rerun published tables and experiments, with several seeds each"),
    "compare": ("mereo.cli.compare", "train several networks under one protocol and compare them"),
    "export": ("mereo.cli.export", "export a network: ONNX, torch.export, timm, hub folder"),
    "bench": ("mereo.cli.bench", "measure speed, memory and correctness, also of your own implementations"),
    "crops": ("mereo.cli.crops", "cut the boxes of annotated images out into folders of classes"),
    "doctor": ("mereo.cli.doctor", "report versions, devices, kernels and data sets, and what is missing"),
    "models": ("mereo.cli.lists", "list the networks"),
    "mechanisms": ("mereo.cli.lists", "list the mechanisms: routing, attention, memories"),
    "datasets": ("mereo.cli.lists", "list the data sets"),
    "tasks": ("mereo.cli.lists", "list the tasks: what is predicted, and what is measured"),
    "recipes": ("mereo.cli.lists", "list the published training recipes"),
}
"""Name -> (module with a function `run(words, command)`, one line)."""


LONGEST_LINE = 1500
"""Longest error or warning in characters, about a screenful; the middle of a longer one is cut out."""
STOPPED = "stopped."
BUSY = 1.5
"""Load for each core above which other programs are competing for it."""
_NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")


def usage() -> str:
    """The text of `mereo --help`."""
    rows = "\n".join(f"  {name:<12}{line}" for name, (_, line) in COMMANDS.items())
    return (
        "usage: mereo COMMAND [OPTIONS]\n\n"
        "Capsule networks, capsule routing and attention as one thing: parts that agree on wholes.\n\n"
        f"{rows}\n\n"
        "mereo COMMAND --help lists the options of a command; mereo --version prints the version."
    )


def _warner() -> Callable[..., None]:
    """A function that prints each distinct warning once, even if several networks read the same images."""
    shown: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        if str(message) not in shown:
            shown.add(str(message))
            say(f"mereo: warning: {one_line(message)}", file=sys.stderr)

    return show


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        say(usage())
        return 0 if words else 2
    if words[0] == "--version":
        from mereo import __version__

        say(__version__)
        return 0
    if words[0] not in COMMANDS:
        raise unknown("command", words[0], COMMANDS)
    run: Callable[[list[str], str], None] = import_module(COMMANDS[words[0]][0]).run
    run(words[1:], words[0])
    return 0


def one_line(message: object) -> str:
    """A message on one line of about a screenful, with control characters escaped."""
    # Cut before escaping too, because escaping turns one character into up to ten.
    return cut(for_terminal(" ".join(cut(str(message), 4 * LONGEST_LINE).split())), LONGEST_LINE)


def _fail(message: object, code: int) -> int:
    say(f"mereo: error: {one_line(message)}", file=sys.stderr)
    return code


def _spin_count() -> str:
    """How often OpenMP threads look for the next piece of work before they sleep, unless the environment sets it.

    Sleeping and waking takes a third of the time of a network of small layers. On a busy machine threads would spin for
    others that are not scheduled, which can make training several times as slow.
    """
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return "1000" if load > BUSY * (os.cpu_count() or 1) else "30000"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    os.environ.setdefault("GOMP_SPINCOUNT", _spin_count())
    # A file name may contain bytes that are not text; printing it must not fail.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    with warnings.catch_warnings():
        warnings.showwarning = _warner()
        # Show mereo's warnings, but not the libraries' notes to programmers.
        warnings.simplefilter("default", UserWarning)
        for note in (FutureWarning, DeprecationWarning):
            warnings.simplefilter("ignore", note)
        return _guarded(list(sys.argv[1:] if argv is None else argv))


def _guarded(words: list[str]) -> int:
    try:
        return _run(words)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    except UsageError as error:
        return _fail(error, 2)
    except MereoError as error:
        return _fail(error, 1)
    except KeyboardInterrupt as stop:
        return _fail(str(stop) or STOPPED, 1)
    except BrokenPipeError:
        # The reader of the pipe has gone; without this, flushing at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", 1)
    except MemoryError:
        return _fail("out of memory. Try a smaller --batch-size or smaller images.", 1)
    except RuntimeError as error:
        if any(sign in str(error) for sign in _NO_MEMORY):
            return _fail(f"out of memory: {str(error).splitlines()[0]} Try a smaller --batch-size or --accumulate.", 1)
        raise
