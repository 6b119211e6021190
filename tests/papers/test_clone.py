"""What is beside the library is found in a clone and named outside."""

import subprocess
import sys
from pathlib import Path

import pytest

from mereo.cli.main import main
from mereo.runtime import clone


@pytest.mark.parametrize("words", [["reproduce"], ["reproduce", "toy_routing"], ["bench", "clear"]])
def test_outside_one_line_says_where_papers_are(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(clone, "__file__", str(tmp_path / "site-packages" / "mereo" / "runtime" / "clone.py"))
    assert main(words) in (1, 2)
    error = capsys.readouterr().err
    assert "papers/" in error and error.count("\n") == 1


def test_the_library_imports_no_paper() -> None:
    found = "any(name.split('.')[0] == 'papers' for name in sys.modules)"
    program = f"import sys, mereo, mereo.bench, mereo.cli.main; sys.exit({found})"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_package_runs_as_a_command() -> None:
    root = Path(clone.__file__).parents[3]
    words = [sys.executable, "-m", "papers", "check", "nosuch"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "'nosuch'" in done.stderr
