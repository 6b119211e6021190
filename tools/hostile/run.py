"""Runs tries, each in a fork of a process that has imported everything: hundreds a minute."""

import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from hostile import behaviour, changed, commands, files, mathematics, streams
from hostile.ground import Done, Try, lay_out

AREAS: dict[str, Callable[[Random], Try]] = {
    "commands": commands.draw, "weights": files.weights, "images": files.images, "archives": files.archives,
    "configurations": files.configurations, "results": files.results, "states": files.states,
    "shapes": mathematics.shapes, "mechanisms": mathematics.mechanisms, "models": mathematics.models,
    "names": mathematics.names, "tars": streams.tars, "tables": streams.tables, "lists": streams.lists,
    "patterns": streams.patterns, "trainings": commands.trainings, "interventions": behaviour.interventions,
    "transforms": behaviour.transforms, "empty": behaviour.empty, "kernels": behaviour.kernels,
    "conversions": changed.conversions, "surgeries": changed.surgeries, "copies": changed.copies,
    "presets": behaviour.presets, "arguments": behaviour.arguments,
}  # fmt: skip
MEMORY = 2 * 2**30
"""Bytes that a try may take beyond what the process has at its start."""
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f\x9b\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Verdict:
    """One try: which it was, what was tried, and what is wrong with how it ended; "" where nothing is."""

    area: str
    number: int
    what: str
    fault: str
    seconds: float
    code: int | None = None


def check(done: Done) -> str:
    """What is wrong with how a command ended."""
    if done.code not in (0, 1, 2):
        return f"exit code {done.code}"
    if "Traceback (most recent" in done.out + done.err:
        return f"traceback: {done.err[-1500:]}"
    lines = done.err.rstrip("\n").split("\n")
    if done.code and done.err and not lines[-1].startswith("mereo: error: "):
        return f"the last line is no error: {lines[-1][:300]!r}"
    if any(len(line) > 3000 for line in lines):
        return f"a line of {max(map(len, lines)):,} characters"
    if "out of memory" in lines[-1]:
        return lines[-1][:500]
    if obeyed := _OBEYED.search(done.out + done.err):
        return f"prints {obeyed.group()!r}"
    return ""


def _no_network(*_: object, **__: object) -> object:
    raise OSError("no network")


def _child(area: str, number: int, seed: int, ground: Path, place: Path) -> None:
    """Make one try in a folder of its own, and write down how it ended."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    said = os.open(place / "said", os.O_RDWR | os.O_CREAT)
    for descriptor, target in ((nothing, 0), (said, 1), (said, 2)):
        os.dup2(descriptor, target)
    folder = place / "here"
    shutil.copytree(ground, folder, symlinks=True)
    os.chdir(folder)
    mapped, resident = (int(n) * os.sysconf("SC_PAGE_SIZE") for n in Path("/proc/self/statm").read_text().split()[:2])
    (place / "resident").write_text(str(resident))
    resource.setrlimit(resource.RLIMIT_AS, (mapped + 3 * MEMORY, mapped + 3 * MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    what, code = "", None
    try:
        attempt = AREAS[area](Random(f"{seed}/{area}/{number}"))
        what = attempt.what[:2000]
        (place / "what").write_text(what, errors="backslashreplace")
        done = attempt.work()
        code, fault = done.code, check(done)
        if not fault and (Path("ran").exists() or Path("beside/precious").read_text() != "years of work"):
            fault = "something was run or replaced"
    except BaseException:
        fault = traceback.format_exc()[-3000:]
    (place / "fault").write_text(json.dumps([fault, code]))


def _start(area: str, number: int, seed: int, ground: Path) -> tuple[int, Path, float]:
    place = Path(tempfile.mkdtemp(prefix="try-"))
    process = os.fork()
    if process == 0:
        status = 70
        try:
            _child(area, number, seed, ground, place)
            status = 0
        finally:
            os._exit(status)
    return process, place, time.monotonic()


def _verdict(area: str, number: int, place: Path, began: float, status: int, most: int, hung: float) -> Verdict:
    what = (place / "what").read_text() if (place / "what").exists() else ""
    fault, code = "", None
    grown = most - int((place / "resident").read_text()) if (place / "resident").exists() else 0
    if (place / "fault").exists():
        fault, code = json.loads((place / "fault").read_text())
    elif not hung:
        fault = (
            f"ended with {os.waitstatus_to_exitcode(status)}: {(place / 'said').read_text(errors='replace')[-1500:]}"
        )
    seconds = time.monotonic() - began
    if hung:
        fault = f"still running after {hung:.0f} s"
    elif not fault and grown > MEMORY:
        fault = f"took {grown / 2**30:.1f} GiB"
    shutil.rmtree(place, ignore_errors=True)
    return Verdict(area, number, what, fault, seconds, code)


def prepare() -> Path:
    """Import what tries need, and lay out the folder that each starts in."""
    from importlib import import_module

    import torch

    for module in (
        "accelerate", "matplotlib.backends.backend_agg", "matplotlib.figure", "torchvision", "pyarrow.parquet", "yaml",
        "tyro", "mereo.cli.main", "mereo.cli.train", "mereo.catalogue", "mereo.training.trainer", "mereo.export.forms",
        "mereo.export.writing", "mereo.export.rows", "mereo.explain", "mereo.bench", "mereo.measure.evaluation",
        "mereo.inference.predict", "mereo.data.stream", "timm",
    ):  # fmt: skip
        import_module(module)
    torch.set_num_threads(1)  # the threads of a pool do not live on in a fork
    os.environ.pop("MEREO_DATA", None)
    import socket

    socket.getaddrinfo = _no_network  # type: ignore[assignment]
    ground = Path(tempfile.mkdtemp(prefix="ground-"))
    before = Path.cwd()
    os.chdir(ground)
    try:
        lay_out()
    finally:
        os.chdir(before)
    return ground


def run(orders: list[tuple[str, int]], seed: int, jobs: int, longest: float = 60.0) -> Iterator[Verdict]:
    """Verdicts of tries (area, number), as they end; `jobs` run at a time, each at most `longest` seconds."""
    ground, waiting = prepare(), list(reversed(orders))
    running: dict[int, tuple[str, int, Path, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                sys.stdout.flush()
                process, place, began = _start(*waiting[-1], seed, ground)
                running[process] = (*waiting.pop(), place, began)
            for process, (area, number, place, began) in list(running.items()):
                ended, status, usage = os.wait4(process, os.WNOHANG)
                hung = 0.0
                if not ended:
                    if time.monotonic() - began < longest:
                        continue
                    hung = longest
                    os.killpg(process, signal.SIGKILL)  # not waited for yet, so the number is still its own
                    _, status, usage = os.wait4(process, 0)
                del running[process]
                yield _verdict(area, number, place, began, status, usage.ru_maxrss * 1024, hung)
            time.sleep(0.003)
    finally:
        for process in running:
            os.killpg(process, signal.SIGKILL)
        shutil.rmtree(ground, ignore_errors=True)
