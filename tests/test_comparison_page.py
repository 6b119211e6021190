"""Finished comparisons are written into a page."""

from pathlib import Path

import pytest
from PIL import Image

import comparison_page


def test_sections_are_replaced_and_pictures_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison_page, "IMAGES", tmp_path / "images")
    folder, page = tmp_path / "compare-toys:viewpoints=azimuth", tmp_path / "family.md"
    folder.mkdir()
    mark = "<!-- compare toys:viewpoints=azimuth -->"
    page.write_text(f"# Page\n\n{mark}\nold\n<!-- end -->\n\nrest <!-- end -->\n")
    Image.new("RGB", (2000, 1000), "red").save(folder / "curves.png")
    for value in (1, 2):
        text = f"| a |\n|---|\n| {value} |\n\n- Note.\n\n"
        (folder / "comparison.md").write_text(f"# Title\n\n{text}![Curves](curves.png)\n")
        comparison_page.fill(page, [folder])
        picture = "images/family/toys_curves.png"
        filled = f"{mark}\n\n{text}![Curves]({picture})\n\n<!-- end -->"
        assert page.read_text() == f"# Page\n\n{filled}\n\nrest <!-- end -->\n"
    with Image.open(tmp_path / picture) as copied:
        assert copied.size == (comparison_page.WIDTH, comparison_page.WIDTH // 2)
    with pytest.raises(SystemExit, match="has no line"):
        comparison_page.fill(page, [tmp_path / "compare-others"])
