"""Claims are read from the pages, and what differs is named."""

from pathlib import Path

import pytest

from mereo.errors import UsageError
from papers import checks
from papers.checks import check, differences, read_claims
from papers.listing import EXPERIMENTS, NAMES

PAGE = """# A paper

    mereo reproduce toy_routing --seeds 2

<!-- check: error at most 1e-3 -->
<!-- check: test % within 0.5; n within 0 -->

| network | test % | n |
|---|---|---|
| a | 90.0 | 1,200 |
| a | 80.0 | 5 |

| other | test % |
|---|---|
| a | 1 |
"""
TABLES = {
    "first": [{"kind": 2, "error": "5e-4"}],
    "second": [{"network": "a", "test %": 90.4, "n": 1200}, {"network": "a", "test %": 80, "n": 5}],
}


def test_a_page_is_read(tmp_path: Path) -> None:
    (tmp_path / "claims.md").write_text(PAGE)
    bound, table = read_claims(tmp_path / "claims.md")
    assert bound.command == table.command == "toy_routing --seeds 2"
    assert bound.limits == {"error": ("at most", 1e-3)} and not bound.rows
    assert table.columns == ["network", "test %", "n"] and len(table.rows) == 2
    assert differences(bound, TABLES) == differences(table, TABLES) == []


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("| a | 90.0", "| a | 89.8", "90.4"),
        ("| 80.0 | 5 |", "| 80.0 | 6 |", "n is 5"),
        ("| a | 80.0", "| b | 80.0", "'b'"),
        ("error at most", "errors at most", "'errors'"),
        ("1e-3", "1e-4", "5e-4"),
    ],
)
def test_what_differs_is_named(old: str, new: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "claims.md").write_text(PAGE.replace(old, new))
    (line,) = [line for claim in read_claims(tmp_path / "claims.md") for line in differences(claim, TABLES)]
    assert named in line


def test_a_comment_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "claims.md").write_text(PAGE.replace("at most", "below"))
    with pytest.raises(ValueError, match="error below"):
        list(read_claims(tmp_path / "claims.md"))


def test_the_pages_name_experiments() -> None:
    claims = [claim for name in NAMES for claim in read_claims(checks.FOLDER / name / "claims.md")]
    assert len(claims) >= 5
    for claim in claims:
        assert claim.command.split()[0].replace("-", "_") in EXPERIMENTS
        assert all(way == "at most" or column in claim.columns for column, (way, _) in claim.limits.items())


def test_a_claim_is_run_again(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(["kiefer_generative_capsules"]) == 0
    assert "as on the page" in capsys.readouterr().out
    monkeypatch.setattr(checks, "_results", lambda command, output: {"other": [{"x": 1}]})
    assert check(["kiefer_generative_capsules"]) == 1
    assert "no column 'x1'" in capsys.readouterr().out
    with pytest.raises(UsageError, match="kiefr"):
        check(["kiefr"])
