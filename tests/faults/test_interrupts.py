"""Ctrl-C ends a command with one line and exit code 1, at whatever moment it comes."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

BEGIN = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    " import mereo.__main__ as m; os.write(2, b'.'); sys.exit(m.main())"
)
"""Printed just before Python's own start ends and ours begins."""


def interrupt(python: str, words: list[str], seconds: float) -> tuple[int, str]:
    """The exit code of a command that is interrupted so long after its start, and its errors."""
    process = subprocess.Popen(
        [python, "-c", BEGIN, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stderr.read(1) == b"."
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    text = errors.decode()
    if text.startswith('Traceback (most recent call last):\n  File "<string>", line 1, in <module>\nKeyboardInterrupt'):
        # On a busy machine the signal may arrive before the first line of ours runs.
        return interrupt(python, words, seconds + 0.05)
    return process.returncode, text


TRAIN = ["train", "--epochs", "1000", "--limit", "64", "--device", "cpu", "--no-tensorboard"]
COMMANDS = {"train": TRAIN, "predict": ["predict", "missing*.png"], "models": ["models"], "reproduce": ["reproduce"]}


def check(command: str, code: int, errors: str) -> None:
    assert "Traceback" not in errors and "Exception ignored" not in errors, errors
    if command == "train" or code == 1:
        assert code == 1 and "mereo: error: stopped." in errors, errors
    else:
        assert code in (0, 2), errors  # it was done before


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_at_the_start(python, command):
    for delay in (0.001, 0.1):
        check(command, *interrupt(python, COMMANDS[command], delay))


@pytest.mark.long
@pytest.mark.parametrize("command", ["train", "models"])
def test_ctrl_c_at_many_moments(python, command):
    for n in range(25):
        check(command, *interrupt(python, COMMANDS[command], 0.003 * 1.35**n))


def test_one_that_a_destructor_would_swallow(python):
    code = (
        "import os, signal, sys, threading, mereo.__main__ as m\n"
        "import mereo.cli.main as c\n"
        "class Slow:\n"
        "    def __del__(self): os.kill(os.getpid(), signal.SIGINT); sum(range(10**6))\n"
        "def run(words=None):\n"
        "    Slow(); return 0\n"
        "c.main = run\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.exit(m.main())"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "stopped." in done.stderr and "ignored" not in done.stderr


MODULES = (
    "json",
    "typing",
    "dataclasses",
    "random",
    "statistics",
    "torch",
    "numpy",
    "mereo",
    "_strptime",
    "subprocess",
)


@pytest.mark.long
def test_children_import_nothing_from_the_working_folder(tmp_path):
    from mereo.bench import Bench
    from mereo.bench.cases import contenders_of
    from mereo.bench.memory import measure_peak
    from mereo.bench.suites import get_suite
    from mereo.cli.bench import request_of
    from mereo.cli.comparison_options import BenchOptions

    for name in MODULES:
        text = f"open('ran', 'a').write({name!r})\nraise SystemExit('{name} of the folder was run')\n"
        Path(f"{name}.py").write_text(text)
    request = request_of(BenchOptions(suite="routing", quick=True, device="cpu"))
    case = Bench(get_suite("routing"), request).cases[0]
    contender = contenders_of(get_suite("routing"), case.setting, request)[0].name
    peak = measure_peak(case, contender, "forward", request, None)
    assert not Path("ran").exists() and "of the folder" not in peak.failure
    assert peak.resident is not None, peak.failure
