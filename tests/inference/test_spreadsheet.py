"""Tables that spreadsheets read and do not run."""

import csv

from mereo.inference.spreadsheet import safe_cell, write_table


def test_formulas_are_text_and_numbers_are_numbers() -> None:
    for text in ("=1+1", "+1", "-1", "@SUM(A1)", " =1", "＝1", "|calc", "%0"):  # noqa: RUF001
        assert str(safe_cell(text)).startswith("'"), text
    assert safe_cell("\t=1") == "\\t=1"
    assert safe_cell("photos/a=b.jpg") == "photos/a=b.jpg"
    assert safe_cell(-1.5) == -1.5
    assert safe_cell(None) is None


def test_hostile_names_stay_one_cell_in_one_row(tmp_path) -> None:
    names = ["a,b", 'say "x"', "two\nlines\r", "\x1b[31mred", "\u202eabc", b"\xff.jpg".decode(errors="surrogateescape")]
    path = write_table(tmp_path / "t.csv", ("image", "number"), [(name, n) for n, name in enumerate(names)])
    assert path.read_bytes().startswith(b"\xef\xbb\xbfimage,number\r\n")
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file))
    assert [int(row[1]) for row in rows[1:]] == list(range(6))
    assert rows[1][0] == "a,b"
    assert rows[2][0] == 'say "x"'
    assert all(row[0].isprintable() for row in rows)
