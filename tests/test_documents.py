"""What the documents say of the code is what the code says."""

import re
import runpy
from pathlib import Path

import pytest

import mereo

ROOT = Path(__file__).parent.parent


def test_the_table_of_mechanisms_is_current():
    written = runpy.run_path(str(ROOT / "tools" / "write_tables.py"))["page"]()
    assert (ROOT / "docs" / "architecture.md").read_text() == written, "run `make tables`"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/claims.md", "docs/architecture.md"])
def test_links_and_pictures_lead_somewhere(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target).exists(), target


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    code = "\n".join(line for line in block.splitlines() if "mereo.load" not in line)
    names: dict[str, object] = {}
    exec(code, names)
    assert names["lengths"].shape == (8, 10)


def test_the_commands_of_the_readme_exist():
    from mereo.cli.main import COMMANDS

    text = (ROOT / "README.md").read_text()
    assert set(re.findall(r"mereo ([a-z]+)\b", "\n".join(re.findall(r"`[^`]+`", text)))) <= set(COMMANDS)


def test_versions_agree():
    assert f'version = "{mereo.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert f"version: {mereo.__version__}" in (ROOT / "CITATION.cff").read_text()
