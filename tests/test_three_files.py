"""What is added takes three files: its own, one import line, its test. Tried in a copy of the sources.

An `Addition` is one row: a mechanism of each family from tests/examples, and whatever else is registered by one file.
All of them are put into one copy; then the commands, the documentation, recording and conformance must know them.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from example_mechanisms import files, load
from mereo.core.catalogue import FAMILIES

ROOT = Path(__file__).parents[1]
TOOLS = Path(sys.executable).parent
COPIED = ("src", "tools", "docs", "tests/conformance", "tests/support", "tests/conftest.py", "tests/frozen")
COPIED_FILES = ("pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "mkdocs.yml")

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Addition:
    """One thing added.

    Args:
        name: what it is registered as.
        kind: the command that lists it, "mechanisms", "models", "datasets" ...
        example: the file under tests/examples that it is copied from; its test stands beside it, NAME_tests.py.
        home: where it is copied to.
        imported_in: the file that gets the import line.
        line: that line.
        test: where its test lies.
        conformance: the words by which pytest selects its conformance tests, and their file.
        check: Python run in the copy, which must end with exit code 0.
    """

    name: str
    kind: str
    example: Path
    home: str
    imported_in: str
    line: str
    test: str
    conformance: str
    check: str


def mechanism(path: Path) -> Addition:
    entry = load(path)
    name, room = entry.name, f"src/mereo/{entry.room.replace('.', '/')}"
    return Addition(
        name=name,
        kind="mechanisms",
        example=path,
        home=f"{room}/{name}.py",
        imported_in=f"{room}/__init__.py",
        line=f"from mereo.{entry.room}.{name} import {entry.target.__name__} as {entry.target.__name__}",
        test=f"tests/{entry.room.replace('.', '/')}/test_{name}.py",
        conformance="tests/conformance/test_mechanisms.py",
        check=f"""
import torch, mereo
from mereo.mechanisms import MECHANISMS
from site_pages import mechanisms
page, row = mechanisms.page(MECHANISMS[{name!r}]), f"({name}.md)"
assert page.startswith("# {name}\\n") and row in mechanisms.listing() and {entry.source.link!r} in page
if isinstance(MECHANISMS[{name!r}].target, type):
    module, inputs = MECHANISMS[{name!r}].example()
    with mereo.record(module.eval()) as trace, torch.no_grad():
        plain = module(*inputs)
    assert bool(trace) == ({entry.records!r} != "nothing")
    with mereo.intervene(module, dict.fromkeys(trace, lambda value: value.roll(1, -1))):
        assert torch.equal(module(*inputs), plain) == (not trace)
""",
    )


ADDITIONS = [mechanism(path) for path in files()]


def run(copy: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(str(copy / folder) for folder in ("src", "tools", "tests/support"))
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.py")}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources with every addition in them."""
    target = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, target / name)
    for name in COPIED_FILES:
        shutil.copy(ROOT / name, target / name)
    before = listing(target)
    for each in ADDITIONS:
        shutil.copy(each.example, target / each.home)
        room = target / each.imported_in
        room.write_text(f"{room.read_text().rstrip()}\n{each.line}\n")
        (target / each.test).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(each.example.with_name(f"{each.example.stem}_tests.py"), target / each.test)
    after = listing(target)
    touched = {name for name in after if after[name] != before.get(name)}
    assert touched == {name for each in ADDITIONS for name in (each.home, each.imported_in, each.test)}
    return target


def test_every_family_is_added() -> None:
    assert {load(path).family for path in files()} == set(FAMILIES)


@pytest.mark.parametrize("kind", sorted({each.kind for each in ADDITIONS}))
def test_the_command_lists_it(copy: Path, kind: str) -> None:
    done = run(copy, sys.executable, "-m", "mereo", kind, "--json")
    assert done.returncode == 0, done.stderr
    listed = {row["name"]: row for row in json.loads(done.stdout)}
    for each in ADDITIONS:
        if each.kind == kind:
            assert listed[each.name]["source"] and listed[each.name]["what"]


def test_pages_recording_and_intervening_know_it(copy: Path) -> None:
    done = run(copy, sys.executable, "-c", "\n".join(each.check for each in ADDITIONS))
    assert done.returncode == 0, done.stderr


def test_its_own_test_passes(copy: Path) -> None:
    done = run(copy, sys.executable, "-m", "pytest", *(each.test for each in ADDITIONS))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("conformance", sorted({each.conformance for each in ADDITIONS}))
def test_conformance_accepts_it(copy: Path, conformance: str) -> None:
    names = [each.name for each in ADDITIONS if each.conformance == conformance]
    # What takes long is tried on the examples in tests/conformance/test_mechanism_checks.py.
    chosen = f"({' or '.join(names)}) and not compiles and not exports"
    done = run(copy, sys.executable, "-m", "pytest", "-vv", conformance, "-k", chosen, "-m", "not slow")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    for name in names:
        assert re.search(rf"\[(?:\w+-)?{name}\] PASSED", done.stdout), name


def test_types_and_layers_accept_it(copy: Path) -> None:
    changed = sorted({name for each in ADDITIONS for name in (each.home, each.imported_in)})
    done = run(copy, TOOLS / "ruff", "check", *changed)
    assert done.returncode == 0, done.stdout
    done = run(copy, TOOLS / "lint-imports", "--no-cache")
    assert done.returncode == 0, done.stdout
