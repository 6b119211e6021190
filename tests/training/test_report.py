"""What a run tells, with and without a terminal."""

import pytest

from mereo.training.report import Report


@pytest.fixture
def report():
    report = Report()
    assert not report.live  # pytest holds the terminal
    report.start(steps=40, done=10)
    return report


def test_a_run_without_a_terminal_says_a_line_once_patience_is_over(report, capsys):
    report.step(1, 2, 50.0, 0.25)
    assert not capsys.readouterr().out
    report.patience = 0.0
    report.step(1, 2, 50.0, None)  # the loss of this step is not known, so neither is it finite
    assert not capsys.readouterr().out
    report.step(1, 2, 1234.0, 0.125)
    line = capsys.readouterr().out
    assert line.startswith("epoch 1/2, step 13 of 40, loss 0.1250, 1,234 images/s, ")
    assert line.endswith(" left\n")


def test_patience_begins_anew_with_every_line(report, capsys, monkeypatch):
    now = report._began
    monkeypatch.setattr("mereo.runtime.progress.time.monotonic", lambda: now)
    lines = []
    for _ in range(30):
        now += 25.0
        report.step(1, 2, 50.0, 0.25)
        lines.append(capsys.readouterr().out)
    told = [n for n, line in enumerate(lines) if line]
    assert told == list(range(0, 30, 3))  # the first comes early
    assert lines[3].endswith("10 min 50 s left\n")  # 25 s a step, 26 steps


def test_rates_below_one_image_a_second_are_shown(report, capsys):
    report.patience = 0.0
    report.step(1, 2, 0.4, 0.25)
    assert ", 0.4 images/s, " in capsys.readouterr().out


def test_a_silent_report_says_nothing(capsys):
    report = Report(silent=True)
    report.patience = 0.0
    report.start(steps=2, done=0)
    report.step(1, 1, 50.0, 0.25)
    assert not capsys.readouterr().out


def test_the_first_loss_is_shown_after_a_second_and_the_next_after_a_minute(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("mereo.runtime.progress.time.monotonic", lambda: now[0])
    report = Report()
    report.start(1000, 0)
    for passed in (0.5, 0.5, 30.0, 30.0):
        now[0] += passed
        report.step(1, 10, 50.0, 0.25)
    first, second = capsys.readouterr().out.splitlines()
    assert "step 2 " in first and "step 4 " in second
