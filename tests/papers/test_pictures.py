"""Pictures of several experiments."""

from pathlib import Path
from typing import Any

import pytest

from papers.common import pictures


def test_a_point_for_each_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    draw = pictures.draw_curves
    monkeypatch.setattr(pictures, "draw_curves", lambda *given, **how: (drawn.append(given[0]), draw(*given, **how)))
    pictures.draw_runs({"one": [1.0, 2.0], "other": [3.0, 4.0]}, "kind", "bits", tmp_path / "bits.png")
    assert drawn == [{"seed 0": {"one": 1.0, "other": 3.0}, "seed 1": {"one": 2.0, "other": 4.0}}]
    assert (tmp_path / "bits.png").stat().st_size > 1000
