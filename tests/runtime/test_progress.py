"""Progress without a terminal and with one."""

import sys

import pytest

from mereo.runtime.progress import MANY, Reporter, followed, silenced


@pytest.fixture
def clock(monkeypatch):
    """Seconds that a test moves on by itself."""
    now = [0.0]
    monkeypatch.setattr("mereo.runtime.progress.time.monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(("silent", "count"), [(False, 3), (True, 0)])
def test_a_long_stage_prints_a_line_a_minute(clock, capsys, silent, count):
    with Reporter(silent=silent).stage("attack", 100) as advance:
        for _ in range(5):
            clock[0] += 30.0
            advance(10)
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert not captured.out and len(lines) == count
    assert silent or lines == [
        "attack: 20 of 100, 4 min 0 s left", "attack: 40 of 100, 3 min 0 s left", "attack: 2 min 30 s",
    ]  # fmt: skip


def test_reached_counts_become_lines_and_a_new_total_begins_anew(clock, capsys):
    reporter = Reporter(output="stdout", patience=10.0)
    for _ in range(2):
        for done in (5, 10, 20):
            clock[0] += 6.0
            reporter.reach("reading", done, 20)
    assert capsys.readouterr().out.splitlines() == ["reading: 20 of 20, 0 s left"] * 2


def test_results_are_numbered_without_a_terminal(capsys):
    Reporter().measured("case 1", 1, 3)
    assert capsys.readouterr().err == "[1/3] case 1\n"


def test_a_terminal_gets_a_bar_that_lines_are_printed_above(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    reporter = Reporter()
    reporter.measured("case 1", 1, 3)
    assert reporter._bar.tasks[0].completed == 1
    reporter.stop()
    assert "case 1\n" in capsys.readouterr().err and reporter._bar is None


@pytest.mark.parametrize(("count", "silent", "lines"), [(MANY, False, 3), (MANY, True, 0), (MANY - 1, False, 0)])
def test_a_slow_reading_of_many_entries_shows_its_progress(clock, capsys, count, silent, lines):
    with silenced(silent):
        for number in followed(range(count), "reading boxes", count):
            clock[0] += 12.0 if number % 800 == 799 or number == count - 1 else 0.0
    captured = capsys.readouterr()
    assert not captured.out and len(captured.err.splitlines()) == lines
    assert not lines or captured.err.startswith("reading boxes: 800 of 2,000, ")
