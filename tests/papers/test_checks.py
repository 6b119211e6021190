"""Claims are read from the pages, and what differs is named."""

from pathlib import Path

import pytest

from mereo import evaluate
from mereo.errors import UsageError
from mereo.models.pretrained import list_pretrained
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
    assert bound.commands == table.commands == ["reproduce toy_routing --seeds 2"]
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
        for verb, name, *_ in map(str.split, claim.commands):
            assert name.replace("-", "_") in EXPERIMENTS if verb == "reproduce" else name in list_pretrained()
        assert all(way == "at most" or column in claim.columns for column, (way, _) in claim.limits.items())


def test_several_networks_are_evaluated_for_one_table(tmp_path: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    command = "    mereo evaluate mspcaps_tiny.mnist --data digits --limit 20 --no-couplings"
    text = (
        f"{command}\n{command} --batch-size 8\n\n<!-- check: test % within 0 -->\n\n| weights | test % |\n|---|---|\n"
    )
    rows = ["| `mspcaps_tiny.mnist` | {} |\n"] * 2
    (tmp_path / "mspcaps").mkdir()
    monkeypatch.setattr(checks, "FOLDER", tmp_path)
    document = evaluate("mspcaps_tiny.mnist", data="digits", limit=20, couplings=False, quiet=True).document
    accuracy = 100 * document["models"]["mspcaps_tiny.mnist"]["accuracy"]
    for stated, differs in (([accuracy, accuracy], 0), ([accuracy, 0], 1)):
        page = text + "".join(row.format(value) for row, value in zip(rows, stated, strict=True))
        (tmp_path / "mspcaps" / "claims.md").write_text(page)
        assert check(["mspcaps"]) == differs
    assert f"test % is {accuracy:g}, on the page 0" in capsys.readouterr().out


def test_a_claim_is_run_again(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(["kiefer_generative_capsules"]) == 0
    assert "as on the page" in capsys.readouterr().out
    monkeypatch.setattr(checks, "_results", lambda command, output: {"other": [{"x": 1}]})
    assert check(["kiefer_generative_capsules"]) == 1
    assert "no column 'x1'" in capsys.readouterr().out
    with pytest.raises(UsageError, match="kiefr"):
        check(["kiefr"])
