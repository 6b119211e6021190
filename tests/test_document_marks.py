"""Marks in documents, between which tools write."""

from pathlib import Path

import pytest

from document_marks import arguments, fill

MARK, END = "<!-- made a -->", "<!-- end -->"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"<!-- made b -->\n{END}\n", "has no line <!-- made a -->"),
        (f"{MARK}\n{END}\n{MARK}\n{END}\n", "more than one line <!-- made a -->"),
        (f"{MARK}\n\n<!-- made b -->\n{END}\n", "no line <!-- end -->"),
        (f"{MARK}\ntext\n", "no line <!-- end -->"),
    ],
)
def test_a_mark_that_is_missing_twice_or_open_is_refused(text: str, message: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(SystemExit, match=message):
        fill(page, "made", ["a"], lambda argument: pytest.fail("made before the marks were checked"))
    assert page.read_text() == text


def test_an_empty_block_leaves_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"A.\n\n{MARK}\nold\n{END}\n\n<!-- other a -->\nkept\n{END}\n")
    fill(page, "made", arguments(page, "made"), lambda _: "")
    assert page.read_text() == f"A.\n\n{MARK}\n\n{END}\n\n<!-- other a -->\nkept\n{END}\n"
