"""How far an evaluation is, where there is no terminal."""

import pytest

from mereo.measure.progress import Stages


@pytest.mark.parametrize(("silent", "lines"), [(False, 3), (True, 0)])
def test_a_long_stage_says_a_line_a_minute(monkeypatch, capsys, silent, lines):
    now = 0.0
    monkeypatch.setattr("mereo.measure.progress.time.monotonic", lambda: now)
    with Stages(silent=silent).stage("attack", 100) as done:
        for _ in range(5):
            now += 30.0
            done(10)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == lines
    assert silent or told == [
        "attack: 20 of 100, 4 min 0 s left", "attack: 40 of 100, 3 min 0 s left", "attack: 2 min 30 s",
    ]  # fmt: skip
