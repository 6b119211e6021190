"""The picture of what mixers recall by the size of their state."""

from pathlib import Path
from typing import Any

import pytest

from papers.dynamical_systems import recurrences


def test_a_line_for_each_mixer_and_a_panel_for_each_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(recurrences, "save_figure", lambda made, path: figures.append(made))
    found = {"S6": {4: 50.0, 16: 75.0}, "Aaren": {4: 24.8}}
    recurrences.draw_accuracy({64: found, 128: {"Aaren": {4: 13.0}}}, tmp_path / "accuracy.png")
    short, long = figures[0].axes
    s6, aaren, chance = short.get_lines()
    assert s6.get_xydata().tolist() == [[4, 50], [16, 75]]
    assert aaren.get_xydata().tolist() == [[4, 24.8], [16, 24.8], [64, 24.8]] and aaren.get_linestyle() == "--"
    assert list(chance.get_ydata()) == [25, 25] and [line.get_label() for line in long.get_lines()][0] == "Aaren"
