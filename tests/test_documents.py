"""What the documents say of the code is what the code says."""

import re
import runpy
import subprocess
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import torch
import yaml

import mereo
from mereo.mechanisms import MECHANISMS
from mereo.models import MODELS
from mereo.routing import dynamic_routing
from site_pages import api, tutorials, whole

ROOT = Path(__file__).parent.parent
WRITTEN = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))
"""The pages that are not made from the code."""


@pytest.fixture(scope="module")
def site():
    """The pages that are made from the code."""
    return whole.pages()


def test_the_table_of_mechanisms_is_current():
    written = runpy.run_path(str(ROOT / "tools" / "write_tables.py"))["page"]()
    assert (ROOT / "docs" / "architecture.md").read_text() == written, "run `make tables`"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *WRITTEN])
def test_links_and_pictures_lead_somewhere(page, site):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if not target.startswith("http"):
            place = ((ROOT / page).parent / target).resolve()
            made = str(place.relative_to(ROOT / "docs")) in site if place.is_relative_to(ROOT / "docs") else False
            assert place.exists() or made, target


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    code = "\n".join(line for line in block.splitlines() if "mereo.load" not in line)
    names: dict[str, object] = {}
    exec(code, names)
    assert names["lengths"].shape == (8, 10)


def test_the_contender_of_the_benchmark_page_routes():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "bench.md").read_text(), re.DOTALL)
    (block,) = [block for block in blocks if "def route(" in block]
    names: dict[str, object] = {}
    exec(block, names)
    children, weight = torch.randn(3, 12, 4), torch.randn(5, 12, 4, 6)
    torch.testing.assert_close(names["route"](children, weight, 3), dynamic_routing(children, weight, 3))


def test_the_commands_of_the_readme_exist():
    from mereo.cli.main import COMMANDS

    text = (ROOT / "README.md").read_text()
    assert set(re.findall(r"mereo ([a-z]+)\b", "\n".join(re.findall(r"`[^`]+`", text)))) <= set(COMMANDS)


def places(navigation):
    for entry in navigation:
        ((_, inside),) = entry.items() if isinstance(entry, dict) else (("", entry),)
        yield from [inside] if isinstance(inside, str) else places(inside)


def test_every_page_is_in_the_navigation_and_nothing_else(site):
    listed = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    found = list(places(whole.navigation(listed, site)))
    assert sorted(found) == sorted([*(page.removeprefix("docs/") for page in WRITTEN), *site])


def test_every_mechanism_has_a_page_with_its_row(site):
    for name, row in MECHANISMS.items():
        page = site[f"mechanisms/{name}.md"]
        assert f"| {row.kind} | {row.over} | {row.says} | {row.steps} | {row.update} |" in page
        assert f"({name}.md)" in site["mechanisms/index.md"]


def test_every_network_is_on_the_page_of_its_family(site):
    for name, entry in MODELS.items():
        family = entry.module.__module__.rpartition(".")[2]
        page = site[f"networks/{family}.md"]
        assert page.startswith(f"# {entry.module.__name__}\n") and f"| `{name}` |" in page
        assert entry.recipe is None or f"### {entry.recipe}\n" in page
        assert f"[`{name}`]({family}.md)" in site["networks/index.md"]


def test_the_parameters_of_a_page_are_those_of_the_network(site):
    for name in ("mspcaps_tiny", "efficient_capsnet"):
        model = mereo.create_model(name)
        decoder = 0 if model.decoder is None else sum(p.numel() for p in model.decoder.parameters())
        counted = f"{sum(p.numel() for p in model.parameters()) - decoder:,}"
        (line,) = [row for row in site["networks/index.md"].splitlines() if row.startswith(f"| [`{name}`]")]
        assert counted in line and (not decoder or f"{decoder:,} of the decoder" in line)


def test_every_option_stands_under_its_command(site):
    sections = re.split(r"^## (mereo \w+)\n", site["commands.md"], flags=re.MULTILINE)
    told = dict(zip(sections[1::2], sections[2::2], strict=True))
    frozen = (ROOT / "tests" / "frozen" / "options.txt").read_text()
    for command, options in re.findall(r"^(mereo \w+)\n((?:  .*\n)*)", frozen, re.MULTILINE):
        for option in re.findall(r"  (--[a-z][a-z-]*)\n", options):
            assert option == "--help" or re.search(rf"{option}[`, ]", told[command]), (command, option)


@pytest.mark.parametrize("room", ["mereo", *(f"mereo.{room}" for room in api.rooms())])
def test_every_public_name_is_in_the_reference(room, site):
    page = site[f"api/{room.rpartition('.')[2]}.md"]
    for name in getattr(import_module(room), "__all__", ()):
        assert re.search(rf"^::: mereo\.[\w.]*\b{name}$", page, re.MULTILINE), name


def test_every_extra_is_explained():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    told = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "installation.md").read_text(), re.MULTILINE)
    assert sorted(told) == sorted(extras)


@pytest.mark.parametrize("script", tutorials.scripts(), ids=lambda script: script.stem)
def test_tutorials_are_short_and_their_output_is_of_no_one_machine(script):
    assert len(script.read_text().splitlines()) <= 80
    for printed in (tutorials.OUTPUT / script.stem).glob("*.txt"):
        assert not re.search(r"(?<![\w.])/(tmp|home|root|work|Users)/", printed.read_text()), printed


@pytest.mark.long
@pytest.mark.parametrize("script", tutorials.scripts(), ids=lambda script: script.stem)
def test_tutorials_run_to_the_end(script, tmp_path, python):
    command = [python, ROOT / "tools" / "run_tutorials.py", script.stem, "--output", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kept = {path.name for path in (tutorials.OUTPUT / script.stem).iterdir()}
    assert {path.name for path in (tmp_path / script.stem).iterdir()} == kept


def test_versions_agree():
    assert f'version = "{mereo.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert f"version: {mereo.__version__}" in (ROOT / "CITATION.cff").read_text()
