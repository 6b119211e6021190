"""Claims are read from the pages, and what differs is named."""

import re
from pathlib import Path
from typing import Any

import pytest

from mereo import evaluate
from mereo.errors import UsageError
from mereo.models.pretrained import list_pretrained
from papers import checks
from papers.checks import Limit, check, differences, read_claims
from papers.listing import EXPERIMENTS, NAMES, STUDIES

PAGE = """# A paper

    mereo reproduce toy_routing --seeds 2 \\
        --epochs 3

<!-- check: error at most 1e-3 -->
<!-- check: test % within 0.5; n within 0 -->

| network | test % | n |
|---|---|---|
| a | 90.0 | 1,200 |
| a | 80.0 | 5 |

    mereo reproduce deep

<!-- check: 24 layers = 24 layers > loss and test % within 0.1 and 2; 8 layers = first, 8 > loss within 0.1;
  row norm first = pre_norm -->

| branch | 24 layers | 8 layers |
|---|---|---|
| norm first | 1.819, 28.9 | -.5 |
| none | - | 1e-1 |

    mereo train

<!-- not checked: takes two hours -->

| other | test % |
|---|---|
| a | 1 |
"""
TABLES: dict[str, list[dict[str, Any]]] = {
    "first": [{"kind": 2, "error": "5e-4"}],
    "second": [{"network": "a", "test %": 90.4, "n": 1200}, {"network": "a", "test %": 80, "n": 5}],
    "first, 8 layers": [{"branch": "pre_norm", "loss": -0.5}, {"branch": "none", "loss": 0.1}],
    "then, 24 layers": [
        {"branch": "none", "loss": None, "test %": None},
        {"branch": "pre_norm", "loss": 1.9, "test %": 27.0},
    ],
}


def test_a_page_is_read(tmp_path: Path) -> None:
    (tmp_path / "claims.md").write_text(PAGE)
    bound, table, deep, left = read_claims(tmp_path / "claims.md")
    assert bound.commands == table.commands == ["mereo reproduce toy_routing --seeds 2 --epochs 3"]
    assert bound.limits == [Limit("error", None, ("error",), "at most", (1e-3,))] and not bound.rows
    assert table.columns == ["network", "test %", "n"] and len(table.rows) == 2
    assert deep.limits[0] == Limit("24 layers", "24 layers", ("loss", "test %"), "within", (0.1, 2.0))
    assert left.reason == "takes two hours" and not left.limits
    assert differences(bound, TABLES) == differences(table, TABLES) == differences(deep, TABLES) == []


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("| a | 90.0", "| a | 89.8", "90.4"),
        ("| 80.0 | 5 |", "| 80.0 | 6 |", "n is 5"),
        ("| a | 80.0", "| b | 80.0", "'b'"),
        ("error at most", "errors at most", "'errors'"),
        ("1e-3", "1e-4", "5e-4"),
        ("28.9", "29.1", "test % is 27"),
        ("1.819, 28.9", "1.819", "2 numbers"),
        ("-.5", ".5", "loss is -0.5"),
        ("= pre_norm", "= post_norm", "'post_norm'"),
        ("first, 8 >", "last, 8 >", "'last, 8'"),
        ("| none | - |", "| none | 1, 2 |", "nan"),
    ],
)
def test_what_differs_is_named(old: str, new: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "claims.md").write_text(PAGE.replace(old, new))
    lines = [line for claim in read_claims(tmp_path / "claims.md") for line in differences(claim, TABLES)]
    assert lines and all(named in line or "nan" in line for line in lines)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("at most", "below", "error below"),
        ("0.1 and 2", "0.1 and 2 and 3", "0.1 and 2 and 3"),
        ("    mereo train\n", "", "two hours"),
        ("|---|---|---|\n| norm", "", ""),
    ],
)
def test_a_comment_that_cannot_be_read(old: str, new: str, named: str, tmp_path: Path) -> None:
    page = PAGE.replace(old, new) if named else PAGE[: PAGE.index("| branch")]
    (tmp_path / "claims.md").write_text(page if named != "two hours" else page[page.index("<!-- not") :])
    with pytest.raises(ValueError, match=named or "no table"):
        list(read_claims(tmp_path / "claims.md"))


@pytest.mark.parametrize("paper", NAMES)
def test_every_command_of_a_page_is_checked_or_says_why_not(paper: str) -> None:
    page = checks.FOLDER / paper / "claims.md"
    claims = list(read_claims(page))
    stated = {command for claim in claims for command in claim.commands}
    commands = re.findall(r"^    (\S.*?)$", page.read_text().replace("\\\n        ", ""), re.MULTILINE)
    assert set(commands) <= stated
    for claim in claims:
        assert claim.reason or claim.limits
        for verb, name, *_ in (command.split()[1:] for command in claim.commands if claim.limits):
            known = {"reproduce": EXPERIMENTS.keys() | STUDIES.keys(), "evaluate": set(list_pretrained())}[verb]
            assert name.replace("-", "_") in known or name in known
        assert all(limit.way == "at most" or limit.page in claim.columns for limit in claim.limits)


@pytest.mark.long
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


def test_a_claim_is_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (checks.FOLDER / "kiefer_generative_capsules" / "claims.md").read_text()
    (tmp_path / "kiefer_generative_capsules").mkdir()
    (tmp_path / "kiefer_generative_capsules" / "claims.md").write_text(
        "    mereo train\n\n<!-- not checked: takes two hours -->\n" + page[page.index("## The toy model") :]
    )
    monkeypatch.setattr(checks, "FOLDER", tmp_path)
    assert check(["kiefer_generative_capsules"]) == 0
    shown = capsys.readouterr().out
    assert "as on the page" in shown and "mereo train: not checked: takes two hours" in shown
    monkeypatch.setattr(checks, "_results", lambda command, output: {"other": [{"x": 1}]})
    assert check(["kiefer_generative_capsules"]) == 1
    assert "no column 'x1'" in capsys.readouterr().out
    with pytest.raises(UsageError, match="kiefr"):
        check(["kiefr"])
