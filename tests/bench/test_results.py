"""Runs written, read, compared and drawn."""

import json
from pathlib import Path

import pytest
from PIL import Image

from mereo.bench import comparison, draw, markdown, read_comparable, read_run
from mereo.bench.machine import machine_facts
from mereo.bench.results import SCHEMA
from mereo.bench.run_pictures import _grid
from mereo.bench.tables import three_digits
from mereo.errors import UsageError


def test_a_run_comes_back_from_its_file(run_of):
    run = run_of({"a": (1, 2, 3), "b": (4, 5, 6)})
    Path("run.json").write_text(run.to_json())
    assert json.loads(run.to_json())["schema"] == SCHEMA
    assert read_run(Path("run.json")) == run


def rows_of(table):
    return {row[2]: dict(zip(table.columns, row, strict=True)) for row in table.rows}


def test_ratios_of_medians(run_of):
    before = run_of({"a": (9, 10, 11), "b": (9, 10, 11), "c": (9, 10, 11), "gone": (1, 1, 1)})
    now = run_of({"a": (4, 5, 6), "b": (19, 20, 21), "c": (9, 10.5, 12), "new": (1, 1, 1)}, torch="3")
    now.measurements[0].resident, before.measurements[0].resident = 50, 100
    table = comparison(now, before)
    rows = rows_of(table)
    assert set(rows) == {"a", "b", "c"}
    assert (rows["a"]["speed now"], rows["a"]["verdict"]) == ("2.00x", "faster")
    assert rows["a"]["peak now / then"] == "0.50"
    assert (rows["b"]["speed now"], rows["b"]["verdict"]) == ("0.50x", "slower")
    assert (rows["c"]["speed now"], rows["c"]["verdict"]) == ("0.95x", "within the spread")
    assert any("torch differs: 2 then, 3 now" in note for note in table.notes)


def test_a_wrong_contender_has_no_ratio(run_of):
    before, now = run_of({"a": (9, 10, 11)}), run_of({"a": (4, 5, 6)})
    now.measurements[0].status = "WRONG"
    row = rows_of(comparison(now, before))["a"]
    assert (row["speed now"], row["verdict"]) == ("-", "WRONG")


def test_other_sizes_are_not_compared(run_of):
    before, now = run_of({"a": (9, 10, 11)}), run_of({"a": (4, 5, 6)})
    before.measurements[0].sizes = {"batch": 8}
    assert rows_of(comparison(now, before))["a"]["verdict"] == "other sizes"


@pytest.mark.parametrize("fact", [{"processor": "Q"}, {"cores": 64}, {"device": "NVIDIA H200"}])
def test_another_machine_is_refused(run_of, fact):
    Path("old.json").write_text(run_of({"a": (1, 2, 3)}, **fact).to_json())
    with pytest.raises(UsageError, match="another machine"):
        read_comparable(Path("old.json"), run_of({"a": (1, 2, 3)}))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "mereo bench --json"),
        ('{"schema": 99}', "another version"),
        ('{"schema": 1}', "measurements"),
    ],
)
def test_what_is_not_a_run_is_refused(run_of, content, reason):
    Path("old.json").write_text(content)
    with pytest.raises(UsageError, match=reason):
        read_comparable(Path("old.json"), run_of({"a": (1, 2, 3)}))


def test_another_suite_or_no_file_is_refused(run_of):
    Path("old.json").write_text(run_of({"a": (1, 2, 3)}, name="large").to_json())
    with pytest.raises(UsageError, match="of suite 'large'"):
        read_comparable(Path("old.json"), run_of({"a": (1, 2, 3)}))
    with pytest.raises(UsageError, match="cannot be read"):
        read_run(Path("nothing.json"))


def is_drawn(path):
    with Image.open(path) as picture:
        return picture.width > 400 and len(picture.convert("L").getcolors(256 * 256)) > 20


def test_lines_along_a_size_are_drawn(run_of):
    run = run_of({"a": (1, 2, 3), "b": (4, 5, 6)})
    run.measurements[1].status = "WRONG"
    run.measurements[1].resident = 2**20
    assert not draw(run, Path("one_size.png")) and not Path("one_size.png").exists()
    more = run_of({"a": (2, 4, 6), "b": (8, 10, 12)})
    run.measurements += more.measurements
    for m, value in zip(run.measurements, (1, 1, 10, 10), strict=True):
        m.axis, m.sizes, m.case = "parents", {"batch": 4, "parents": value}, f"parents={value}"
    run.measurements[3].memory_note = "does not fit 1 GiB"
    run.options["limit"] = 2**30
    assert draw(run, Path("lines.png")) and is_drawn("lines.png")
    text = markdown(run, "lines.png", [])
    assert "![small](lines.png)" in text and "does not fit 1 GiB" in text and "WRONG" in text


@pytest.mark.parametrize(
    ("value", "shown"), [(0.4512, "0.451"), (1.35, "1.35"), (94.04, "94"), (999.6, "1,000"), (12345.6, "12,346")]
)
def test_three_digits_count(value, shown):
    assert three_digits(value) == shown


def test_facts_of_the_machine():
    facts = machine_facts()
    assert facts["processor"] and facts["cores"] >= 1 and facts["device"] == "cpu"
    json.dumps(facts)


def test_panels_are_two_in_a_row_so_that_their_text_is_readable_on_a_page():
    figure, blocks = _grid(3, 3.4, 2.7, blocks=2)
    assert [len(block) for block in blocks] == [3, 3] and figure.get_figwidth() < 9
    assert sum(axes.get_visible() for axes in figure.axes) == 6
    places = [axes.get_subplotspec() for axes in blocks[1]]
    assert [(place.rowspan.start, place.colspan.start) for place in places] == [(2, 0), (2, 1), (3, 0)]
