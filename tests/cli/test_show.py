"""Tables on a terminal: whatever its width, every cell is there, and the first column is whole."""

import re
import sys

import pytest

from mereo.cli.show import print_table

COLUMNS = ("network", "accuracy", "95 % interval", "ECE normalised", "ECE softmax", "Brier normalised", "worst class")
ROWS = [
    ("mspcaps_tiny.fashion_mnist", "91.20 %", "88.10 % to 94.00 %", "12.21 %", "20.76 %", "0.775", "shirt (70.00 %)"),
    ("another_network", "[red] %", "11.10 % to 12.00 %", "1.21 %", "2.76 %", "0.123", ":smile:"),
]


@pytest.fixture
def lines(capsys, monkeypatch):
    """lines(width, ...): what `print_table` draws on a terminal of that width."""

    def draw(width, *words, **options):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm")
        print_table(*words, **options)
        return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()

    return draw


@pytest.mark.parametrize("width", [60, 80, 200])
def test_nothing_is_cut(lines, width):
    drawn = lines(width, COLUMNS, ROWS, title="[b]digits")
    assert max(map(len, drawn)) <= width and drawn[0].strip() == "[b]digits"
    for row in ROWS:
        for cell in row:
            assert any(cell in line for line in drawn), cell
    parts = sum(line.count(ROWS[0][0]) for line in drawn)
    assert parts == {60: 5, 80: 2, 200: 1}[width]
    words = {word for line in drawn for word in line.split()}
    assert {word for column in COLUMNS for word in column.split()} <= words


def test_long_text_is_wrapped(lines):
    text = "a sentence that is longer than the space next to the name of the row " * 2
    drawn = lines(80, ("name", "what"), [("x" * 30, text), ("名前", "short")])
    assert max(map(len, drawn)) <= 80 and any("x" * 30 in line for line in drawn)
    shown = " ".join(line.split("│")[2].strip() for line in drawn if line.startswith("│"))
    assert " ".join(text.split()) in shown


def test_a_name_wider_than_the_terminal_is_whole_on_several_lines(lines):
    drawn = lines(40, ("image", "says"), [("/a/long/path/" * 5, "dog 0.9")])
    shown = "".join(line.split("│")[1].strip() for line in drawn if line.startswith("│"))
    assert shown == "/a/long/path/" * 5 and any("dog 0.9" in line for line in drawn)
