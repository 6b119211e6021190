"""Figures of a page of the documentation, from the files of the bench."""

from dataclasses import asdict
from pathlib import Path

from document_marks import arguments
from fill_figures import fill
from mereo.bench import Request, get_suite
from mereo.bench.suite import Table

PAGE = "Text.\n\n<!-- figures attention choose -->\nold\n<!-- end -->\n\nMore.\n"


def test_what_stands_between_the_marks_is_replaced(run_of) -> None:
    run = run_of({"plain": (9, 10, 11), "other": (4, 5, 6)})
    run.suite, run.options = "attention", asdict(Request("attention", threads=(2,), sizes=(("tokens", (64, 256)),)))
    Path("reports").mkdir()
    Path("reports/attention.json").write_text(run.to_json())
    Path("reports/attention.png").write_bytes(b"picture")
    Path("page.md").write_text(PAGE)
    assert fill(Path("page.md"), Path("reports")) == ["attention"]
    text = Path("page.md").read_text()
    assert "old" not in text and text.startswith("Text.") and text.endswith("<!-- end -->\n\nMore.\n")
    assert "mereo bench attention --threads 2 --sizes tokens=64,256" in text and "| 2.00 |" in text
    assert Path("images/bench/attention.png").read_bytes() == b"picture" and "](images/bench/attention.png)" in text
    run.tables = [asdict(Table("Which", ("a", "b"), (("1", "x|y"),)))]
    Path("reports/attention.json").write_text(run.to_json())
    fill(Path("page.md"), Path("reports"))
    text = Path("page.md").read_text()
    assert "| 1 | x\\|y |" in text and "2.00" not in text and text.count("### attention") == 1


def test_the_page_of_attention_names_suites() -> None:
    root = Path(__file__).parents[2]
    (place,) = arguments(root / "docs" / "attention.md", "figures")
    lines = (root / "Makefile").read_text(encoding="utf-8").splitlines()
    (measured,) = (line.partition(":=")[2].split() for line in lines if line.startswith("SUITES :="))
    for suite in place.split():
        assert get_suite(suite).name == suite and suite in measured
        assert any(line.startswith(f"OPTIONS_{suite} :=") for line in lines)
