"""The documents agree with the code."""

import importlib.util
import inspect
import posixpath
import re
import shlex
import subprocess
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import torch
import yaml

import mereo
from mereo.catalogue import MECHANISMS
from mereo.core import mechanism
from mereo.data import DATASETS, Batch
from mereo.mechanisms.routing import dynamic_routing
from mereo.models import MODELS
from mereo.tasks import TASKS
from site_pages import api, mechanisms, repository, tutorials, whole

ROOT = Path(__file__).parent.parent
WRITTEN = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))
"""The pages that are not made from the code."""
CLAIMS = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "papers").rglob("*.md"))


one_worker = pytest.mark.xdist_group("site")


@pytest.fixture(scope="session")
def site():
    """The pages that are made from the code; they take a while, so one worker of pytest-xdist has all its tests."""
    return whole.pages()


@one_worker
@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *WRITTEN, *CLAIMS])
def test_links_and_pictures_lead_somewhere(page, site):
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if not target.startswith("http"):
            place = ((ROOT / page).parent / target).resolve()
            made = str(place.relative_to(ROOT / "docs")) in site if place.is_relative_to(ROOT / "docs") else False
            assert place.exists() or made, target


@one_worker
def test_links_of_the_site_lead_to_its_pages(site):
    pages = site | {page.removeprefix("docs/"): (ROOT / page).read_text() for page in WRITTEN}
    for place, text in pages.items():
        prose = re.sub(r"^```.*?^```|`[^`\n]+`", "", repository.led(text), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", prose):
            at = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
            known = at in pages or at in repository.FILES or (ROOT / "docs" / at).is_file()
            assert known or target.startswith("http"), (place, target)


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    code = "\n".join(line for line in block.splitlines() if "mereo.load" not in line)
    names: dict[str, object] = {}
    exec(code, names)
    assert names["lengths"].shape == (8, 10)


def test_the_python_of_the_language_page_prints_what_it_states(capsys):
    page = (ROOT / "docs" / "language.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, object] = {}
    assert len(blocks) == 3
    for block in blocks:
        exec(block, names)
        printed = capsys.readouterr().out.splitlines()
        assert printed and all(f"`{line}`" in page for line in printed)


def test_the_contender_of_the_benchmark_page_routes():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "bench.md").read_text(), re.DOTALL)
    (block,) = [block for block in blocks if "def route(" in block]
    names: dict[str, object] = {}
    exec(block, names)
    children, weight = torch.randn(3, 12, 4), torch.randn(5, 12, 4, 6)
    torch.testing.assert_close(names["route"](children, weight, 3), dynamic_routing(children, weight, 3))


@pytest.mark.long
def test_the_blocks_of_the_page_on_backbones_run(tmp_path, monkeypatch, capsys):
    from mereo.cli.main import main

    monkeypatch.chdir(tmp_path)
    text, names = (ROOT / "docs" / "backbones.md").read_text(), {}
    blocks = re.findall(r"```(python|sh)\n(.*?)```", text, re.DOTALL)
    assert len(blocks) > 6
    for language, block in blocks:
        if language == "python":
            if "# needs timm" in block and importlib.util.find_spec("timm") is None:
                continue
            exec(block, names)
        else:
            for command in block.strip().splitlines():
                program, *words = shlex.split(command)
                assert program == "mereo" and main(words) == 0, (command, capsys.readouterr().err)
    assert {"photo.png", "attention.png", "head.safetensors"} <= {path.name for path in tmp_path.iterdir()}
    assert (tmp_path / "explained" / "explanation.png").exists()


def test_the_blocks_of_the_page_on_attention_run():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "attention.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    assert len(blocks) == 4
    for block in blocks:
        exec(block, names)
    assert names["couplings"].shape == (2, 4, 144, 152)
    assert names["result"].loss < names["result"].history[0]["loss"]


def test_the_blocks_of_the_page_on_generative_capsules_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "generative.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    assert len(blocks) == 2
    for block in blocks:
        exec(block, names)
    explained = names["explained"]
    assert (explained.elbo > explained.trace[:, 0]).all() and names["rebuilt"].shape == (8, 1, 16, 16)


def test_the_page_on_attention_has_the_rows_of_its_command():
    from mereo.bench.suites.choose import CHOICES

    text = (ROOT / "docs" / "attention.md").read_text()
    for choice in CHOICES:
        row = f"| {choice.name} | {choice.takes} | {choice.causal} | {choice.compared} |"
        assert row.removesuffix("|") in text, choice.name


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
SHOWN = re.findall(r"<!-- (tests/examples/\S+) -->\n```python\n(.*?)```", CONTRIBUTING, re.DOTALL)


@pytest.mark.parametrize(("file", "block"), SHOWN, ids=[file for file, _ in SHOWN])
def test_the_examples_of_contributing_are_the_tested_files(file, block):
    text = (ROOT / file).read_text()
    for piece in re.split(r"^\.\.\.\n", block, flags=re.MULTILINE):
        assert piece.strip() and piece in text, piece


@pytest.mark.long
def test_the_script_of_contributing_holds_all_checks(python):
    section = CONTRIBUTING.partition("### A script of your own")[2]
    (script,) = re.findall(r"```\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    done = subprocess.run([python, "-"], input=script, capture_output=True, text=True, check=True)
    assert re.search(r"mean_gate: \d+ checks hold, 0 fail\n", done.stdout), done.stdout
    assert "after layer1, layer2, layer3, layer4" in done.stdout


def test_contributing_shows_examples_and_names_files_that_exist():
    assert len(SHOWN) == CONTRIBUTING.count("```python")
    named = [
        name for name in re.findall(r"`((?:src|tests|docs)/[\w/.]+)`", CONTRIBUTING) if not re.search("[A-Z]{4}", name)
    ]
    made = {
        "src/mereo/mechanisms/attention/memory/external_memory.py",
        "tests/mechanisms/attention/memory/test_external_memory.py",
    }
    assert [name for name in named if not (ROOT / name).exists() and name not in made] == []


def test_every_argument_of_a_mechanism_is_explained():
    arguments = set(inspect.signature(mechanism).parameters) - {"name", "update", "example"}
    assert arguments <= set(re.findall(r"`(\w+)`", CONTRIBUTING[CONTRIBUTING.index("| argument |") :]))


def test_every_room_is_in_the_table_of_rooms():
    table = (ROOT / "docs" / "architecture.md").read_text()
    described = set(re.findall(r"^\| `(\w+)/` \|", table, re.MULTILINE))
    assert {room.partition(".")[0] for room in api.rooms()} | {"cli"} <= described


def test_the_commands_of_the_readme_exist():
    from mereo.cli.main import COMMANDS

    text = (ROOT / "README.md").read_text()
    assert set(re.findall(r"mereo ([a-z]+)\b", "\n".join(re.findall(r"`[^`]+`", text)))) <= set(COMMANDS)


def places(navigation):
    for entry in navigation:
        ((_, inside),) = entry.items() if isinstance(entry, dict) else (("", entry),)
        yield from [inside] if isinstance(inside, str) else places(inside)


@one_worker
def test_every_page_is_in_the_navigation_and_nothing_else(site):
    listed = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    in_navigation = list(places(whole.navigation(listed, site)))
    assert sorted(in_navigation) == sorted([*(page.removeprefix("docs/") for page in WRITTEN), *site])


@one_worker
def test_every_mechanism_has_a_page_and_a_row_with_its_facts_and_promises(site):
    for name, entry in MECHANISMS.items():
        page = site[f"mechanisms/{name}.md"]
        assert all(fact in page for fact in (entry.family, entry.source.link, *entry.facts().values()))
        assert all(f"**{promise}**" in page for promise in entry.promises)
        (row,) = [line for line in site["mechanisms/index.md"].splitlines() if f"({name}.md)" in line]
        assert row.count("| yes ") == len(entry.promises) and entry.source.link in row


def test_the_columns_of_a_family_are_the_promises_of_its_mechanisms():
    columns, rows = mechanisms.columns_and_rows("memory")
    assert {"masks", "any length"} <= set(columns) and not {"causal", "streaming"} & set(columns)
    assert all(len(row) == len(columns) for row in rows)


@one_worker
def test_every_data_set_and_task_has_a_row_with_its_facts(site):
    for name, info in DATASETS.items():
        (row,) = [line for line in site["datasets.md"].splitlines() if line.startswith(f"| `{name}` |")]
        assert all(f"`{fact}`" in row for fact in (*info.fields, *info.augment, *info.files))
        assert all(f"{split} {count:,}" in row for split, count in info.splits.items())
    for name, task in TASKS.items():
        (row,) = [line for line in site["tasks.md"].splitlines() if line.startswith(f"| [`{name}`]")]
        assert (
            all(f"`{fact}`" in row for fact in (*task.requires, task.chooses[0]))
            and f"\n## {name}\n" in site["tasks.md"]
        )


@one_worker
def test_every_network_is_on_the_page_of_its_family(site):
    for name, entry in MODELS.items():
        family = entry.module.__module__.rpartition(".")[2]
        page = site[f"networks/{family}.md"]
        assert page.startswith(f"# {entry.module.__name__}\n") and f"| `{name}` |" in page
        assert entry.recipe is None or f"### {entry.recipe}\n" in page
        (row,) = [line for line in site["networks/index.md"].splitlines() if f"| [`{name}`]" in line]
        assert entry.reconstruction in row and (not entry.reconstruction or entry.reconstruction in page)
        assert f"[`{name}`]({family}.md)" in site["networks/index.md"]


@one_worker
def test_the_parameters_of_a_page_are_those_of_the_network(site):
    for name in ("mspcaps_tiny", "efficient_capsnet"):
        model = mereo.create_model(name)
        decoder = 0 if model.decoder is None else sum(p.numel() for p in model.decoder.parameters())
        counted = f"{sum(p.numel() for p in model.parameters()) - decoder:,}"
        (line,) = [row for row in site["networks/index.md"].splitlines() if row.startswith(f"| [`{name}`]")]
        assert counted in line and (not decoder or f"{decoder:,} of the decoder" in line)


@one_worker
def test_every_field_of_a_batch_is_explained(site):
    assert set(Batch._fields) == set(re.findall(r"^\| `(\w+)` \|", site["tasks.md"], re.MULTILINE))


@one_worker
def test_every_option_stands_under_its_command(site):
    sections = re.split(r"^## (mereo \w+)\n", site["commands.md"], flags=re.MULTILINE)
    described = dict(zip(sections[1::2], sections[2::2], strict=True))
    frozen = (ROOT / "tests" / "frozen" / "options.txt").read_text()
    for command, options in re.findall(r"^(mereo \w+)\n((?:  .*\n)*)", frozen, re.MULTILINE):
        for option in re.findall(r"  (--[a-z][a-z-]*)\n", options):
            assert option == "--help" or re.search(rf"{option}[`, ]", described[command]), (command, option)


@one_worker
@pytest.mark.parametrize("room", ["mereo", *(f"mereo.{room}" for room in api.rooms())])
def test_every_public_name_is_in_the_reference(room, site):
    page = site[f"api/{room.rpartition('.')[2]}.md"]
    for name in getattr(import_module(room), "__all__", ()):
        assert re.search(rf"^::: mereo\.[\w.]*\b{name}$", page, re.MULTILINE), name


def test_every_extra_is_explained():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    described = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "installation.md").read_text(), re.MULTILINE)
    assert sorted(described) == sorted(extras)


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
