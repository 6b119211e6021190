"""Cells of the table of predictions in words, and names that are refused as folders of predictions."""

from pathlib import Path

import pytest

import mereo
from mereo.api.prediction import MOST_NUMBERS, Predictions, check_out
from mereo.inference.predict import Prediction


@pytest.mark.parametrize(
    ("values", "cell"),
    [
        ({"left": 2.78849}, "left 2.788"),
        ({"shares": {"0": 0.25, "1": 0.75}}, "shares 0 0.25, 1 0.75"),
        ({"labels": ["big"], "probabilities": {"big": 0.9}}, "labels big; probabilities big 0.9"),
        ({"labels": [], "probabilities": {"big": 0.1}}, "labels none; probabilities big 0.1"),
    ],
)
def test_values_are_shown_in_words(values: dict[str, object], cell: str) -> None:
    predictions = Predictions([Prediction(Path("a.png"), values)], Path("run"))
    assert predictions.table()[1] == [["a.png", cell]]


def test_of_many_values_the_largest_are_shown() -> None:
    shares = {f"c{number}": number / 100 for number in range(MOST_NUMBERS + 4)}
    (row,) = Predictions([Prediction(Path("a.png"), {"shares": shares})], Path("run")).table()[1]
    assert "c3 " not in row[1] and "c11 0.11" in row[1] and row[1].endswith("... 12 in all")


@pytest.mark.parametrize("name", ["found.png", "found.JSON", "found.txt"])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(mereo.UsageError, match=r"ends in \.csv"):
        check_out(tmp_path / name)
    (tmp_path / name).mkdir()
    check_out(tmp_path / name)
    check_out(tmp_path / "v1.2")
