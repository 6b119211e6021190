"""The tables and pictures of a comparison: headings in words, and every measurement of the commands has one."""

from dataclasses import fields, replace
from pathlib import Path

from mereo.export.comparison import (
    EXPLAINED,
    WITHOUT_COLUMN,
    columns,
    markdown,
    measured_cells,
    write_comparison,
)
from mereo.export.rows import Row, ranked
from mereo.measure.robustness import Robustness
from mereo.measure.side_by_side import Measured

ROW = Row("capsnet", 10, 10, 10, (0.5,), "validation", 10, 1.0, 1.0, 1.0)


def test_measurements_are_named_in_words() -> None:
    robust = dict.fromkeys((field.name for field in fields(Robustness) if field.name != "curves"), 0.25)
    beside = Measured(10, 5, 0.25, 0.25, 0.25, 0.25).to_dict()
    for measured, words in ((robust, "attacked (APGD), %"), (beside, "attacked (PGD), %")):
        shown = {name: value for name, value in measured.items() if value is not None and name not in WITHOUT_COLUMN}
        headings, lines = measured_cells([ROW], {"capsnet": measured})
        assert words in headings and len(headings) == len(shown) + 1 == len(set(headings))
        assert not any("_" in heading or "apgd" in heading for heading in headings)
        assert lines == [("capsnet", *["25.0"] * len(shown))]
    assert columns([ROW])[1] == "test accuracy, %"
    assert EXPLAINED in markdown([ROW], "digits", "", measured={"capsnet": robust}).replace("\\", "")
    assert EXPLAINED not in markdown([ROW], "digits", "")


def test_a_network_that_guesses_is_ranked_last() -> None:
    # Where most images are of one class, always predicting it may give the highest accuracy.
    guessing = replace(ROW, model="guessing", values=(0.9,), at_chance=True)
    better = replace(ROW, model="better", values=(0.6,))
    assert [row.model for row in ranked([guessing, ROW, better])] == ["better", "capsnet", "guessing"]
    assert guessing.to_dict()["at_chance"] and not ROW.to_dict()["at_chance"]


def test_the_pictures_are_drawn(tmp_path: Path) -> None:
    robust = dict.fromkeys((field.name for field in fields(Robustness) if field.name != "curves"), 0.25)
    curves = {"capsnet": {"rotation": [(0.0, 0.5), (20.0, 0.25)], "occlusion": [(0.0, 0.5), (20.0, 0.25)]}}
    paths = write_comparison([ROW], tmp_path, "digits", "", {"capsnet": robust}, curves=curves)
    assert {path.name for path in paths} >= {"comparison.md", "comparison.png", "curves.png"}
    assert all(path.stat().st_size for path in paths)
