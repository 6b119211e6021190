"""The reports of hostile tries, of which `make test-all` runs thousands."""

import os
from pathlib import Path

import pytest


@pytest.mark.long
def test_a_fault_is_reported(monkeypatch):
    from hostile import run
    from hostile.ground import Done, Try

    def hang():
        while True:
            pass

    def break_down(_):
        return Try("a broken one", lambda: {}["missing"])

    monkeypatch.setattr(run, "prepare", lambda: Path("ground"))
    monkeypatch.setattr(run, "MEMORY", 2**27)
    Path("ground/beside").mkdir(parents=True)
    Path("ground/beside/precious").write_text("years of work")
    ways = {
        "broken": break_down, "hanging": lambda _: Try("", hang), "good": lambda _: Try("", lambda: Done(0)),
        "crashed": lambda _: Try("", lambda: os.kill(os.getpid(), 8)), "code": lambda _: Try("", lambda: Done(70)),
        "obeyed": lambda _: Try("", lambda: Done(0, "\x1b[2J")), "traceback": lambda _: Try("", lambda: Done(
            1, "", "Traceback (most recent call last):\nmereo: error: x")),
        "large": lambda _: Try("", lambda: Done(len(bytearray(os.urandom(1)) * (3 * 2**26)) * 0)),
    }  # fmt: skip
    monkeypatch.setattr(run, "AREAS", ways)
    verdicts = {v.area: v.fault for v in run.run([(area, 0) for area in ways], 0, 2, 4.0)}
    expected = {
        "broken": "KeyError", "hanging": "still running", "good": "", "crashed": "ended with -8",
        "code": "exit code 70", "obeyed": "prints", "traceback": "traceback", "large": "GiB",
    }  # fmt: skip
    for area, fault in expected.items():
        assert (fault in verdicts[area]) if fault else not verdicts[area], (area, verdicts[area])
