"""An addition needs three files: its own, one import line, its test. Tried in a copy of the sources.

An `Addition` is one row: a mechanism of each family, a network without capsules, a data set and a task, from
tests/examples. All of them are put into one copy; then the commands, training, the documentation, recording and
conformance must include them, and what is tested of the whole package must still hold.
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

from example_files import FOLDER, files, load
from mereo.core.catalogue import FAMILIES

ROOT = Path(__file__).parents[1]
TOOLS = Path(sys.executable).parent
COPIED = ("src", "papers", "tools", "docs", "tests", "pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
COPIED += ("CITATION.cff", "mkdocs.yml")

pytestmark = pytest.mark.long


@dataclass(frozen=True)
class Addition:
    """One thing added.

    Args:
        name: what it is registered as.
        kind: the command that lists it, "mechanisms", "models", "datasets" ...
        example: the file under tests/examples that it is copied from; its test is next to it, NAME_tests.py.
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
from mereo.catalogue import MECHANISMS
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


def network(path: Path, name: str) -> Addition:
    (class_name,) = re.findall(r"^class (\w+)\(VisionModel\)", path.read_text(), re.MULTILINE)
    return Addition(
        name=name,
        kind="models",
        example=path,
        home=f"src/mereo/models/vision/{path.stem}.py",
        imported_in="src/mereo/models/vision/__init__.py",
        line=f"from mereo.models.vision.{path.stem} import {class_name} as {class_name}",
        test=f"tests/models/vision/test_{path.stem}.py",
        conformance="tests/conformance/test_models.py",
        check=f"""
import timm, torch, mereo
from mereo.cli.main import main
from site_pages import networks
models = mereo.create_model({name!r}, num_classes=4), timm.create_model({name!r}, num_classes=4)
assert {{type(model).__name__ for model in models}} == {{{class_name!r}}}
pages = networks.pages()
assert pages["networks/{path.stem}.md"].startswith("# {class_name}\\n")
assert "[`{name}`]({path.stem}.md)" in pages["networks/index.md"]
few = ["--epochs", "1", "--limit", "64", "--device", "cpu", "--no-tensorboard"]
assert main(["train", "--model", {name!r}, "--data", "digits", "--name", "network", *few]) == 0
assert mereo.load("runs/network").config["model"] == {name!r}
""",
    )


def data_set(path: Path) -> Addition:
    return Addition(
        name=path.stem,
        kind="datasets",
        example=path,
        home=f"src/mereo/data/sets/{path.stem}.py",
        imported_in="src/mereo/data/sets/__init__.py",
        line=f"from mereo.data.sets import {path.stem} as {path.stem}",
        test=f"tests/data/test_{path.stem}.py",
        conformance="tests/conformance/test_datasets.py",
        check=f"""
import importlib.util, pathlib, torch
from mereo.cli.doctor import data
from mereo.cli.main import main
from mereo.data import DATASETS
from mereo.training.config import TrainConfig
from site_pages import data as pages
spec = importlib.util.spec_from_file_location("written", "tests/data/test_{path.stem}.py")
written = importlib.util.module_from_spec(spec)
spec.loader.exec_module(written)
root, info = pathlib.Path("root"), DATASETS[{path.stem!r}]
root.mkdir()
assert data("root")[{path.stem!r}] == "not found"
for file in info.files:
    written.write(root / file, [*range(10)] * 8)
assert data("root")[{path.stem!r}] == str(root / info.files[0])
few = ["--epochs", "1", "--limit", "64", "--device", "cpu", "--no-tensorboard"]
narrow = ["--model-args", "channels=[4,8,8]"]
assert main(["train", "--data", {path.stem!r}, "--data-root", "root", "--name", "data", *few, *narrow]) == 0
assert TrainConfig.from_yaml(pathlib.Path("runs/data/config.yaml")).augment == info.augment
row = next(line for line in pages.datasets().splitlines() if line.startswith("| `{path.stem}`"))
assert all(operation in row for operation in info.augment) and "`labels`" in row
""",
    )


FOLDER_OF_MASKS = """
import numpy
for number in range(40):
    mask = numpy.random.default_rng(number).integers(0, 3, (8, 8), dtype=numpy.uint8)
    for kind, pixels in (("images", 80 * mask), ("masks", mask)):
        pathlib.Path("pictures", kind).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(f"pictures/{kind}/{number}.png")
"""


def task(path: Path, data: str = "digits", prepare: str = "") -> Addition:
    (class_name,) = re.findall(r"^class (\w+)\(Task\)", path.read_text(), re.MULTILINE)
    return Addition(
        name=path.stem,
        kind="tasks",
        example=path,
        home=f"src/mereo/tasks/{path.stem}.py",
        imported_in="src/mereo/tasks/__init__.py",
        line=f"from mereo.tasks.{path.stem} import {class_name} as {class_name}",
        test=f"tests/tasks/test_{path.stem}.py",
        conformance="tests/conformance/test_tasks.py",
        check=f"""
import json, contextlib, io, pathlib
from PIL import Image
{prepare}
from mereo.cli.main import main
from mereo.tasks import TASKS
from site_pages import data as pages
few = ["--epochs", "1", "--limit", "64", "--device", "cpu", "--no-tensorboard"]
narrow = ["--model-args", "channels=[4,8,8]"]
run = "runs/{path.stem}"
trained = ["--task", {path.stem!r}, "--data", {data!r}, "--name", {path.stem!r}]
assert main(["train", *trained, *few, *narrow]) == 0
metric, _ = TASKS[{path.stem!r}].chooses
assert metric in json.loads(open(run + "/results.json").read())["test_last"]
Image.new("L", (8, 8)).save("image.png")
with contextlib.redirect_stdout(io.StringIO()) as printed:
    assert main(["predict", "image.png", "--weights", run, "--json"]) == 0
assert json.loads(printed.getvalue())
assert f"## {path.stem}\\n" in pages.tasks() and f"`{{metric}}`" in pages.tasks()
""",
    )


ADDITIONS = [
    *(mechanism(path) for path in files()),
    network(FOLDER / "models" / "all_cnn.py", "all_cnn_c"),
    data_set(FOLDER / "data" / "usps.py"),
    task(FOLDER / "tasks" / "centroid.py"),
    task(FOLDER / "tasks" / "coverage.py", "pictures", FOLDER_OF_MASKS),
]


def run(copy: Path, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(str(copy / folder) for folder in ("src", "tools", "tests/support"))
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"} | variables
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
    before = listing(target)
    for each in ADDITIONS:
        shutil.copy(each.example, target / each.home)
        room = target / each.imported_in
        before_all, all_, rest = room.read_text().partition("\n__all__")
        room.write_text(f"{before_all.rstrip()}\n{each.line}\n{all_}{rest}")
        (target / each.test).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(each.example.with_name(f"{each.example.stem}_tests.py"), target / each.test)
    after = listing(target)
    touched = {name for name in after if after[name] != before.get(name)}
    assert touched == {name for each in ADDITIONS for name in (each.home, each.imported_in, each.test)}
    return target


def test_every_family_is_added() -> None:
    assert {load(path).family for path in files()} == set(FAMILIES)
    examples = {path for path in FOLDER.rglob("*.py") if not path.stem.endswith("_tests")}
    assert {each.example for each in ADDITIONS} == examples


@pytest.mark.parametrize("kind", sorted({each.kind for each in ADDITIONS}))
def test_the_command_lists_it(copy: Path, kind: str) -> None:
    done = run(copy, sys.executable, "-m", "mereo", kind, "--json")
    assert done.returncode == 0, done.stderr
    listed = {row["name"]: row for row in json.loads(done.stdout)}
    for each in ADDITIONS:
        if each.kind == kind:
            assert listed[each.name]["what"] and listed[each.name].get("source", kind == "tasks")


@pytest.mark.parametrize("kind", sorted({each.kind for each in ADDITIONS}))
def test_pages_commands_and_recording_include_it(copy: Path, kind: str) -> None:
    done = run(copy, sys.executable, "-c", "\n".join(each.check for each in ADDITIONS if each.kind == kind))
    assert done.returncode == 0, done.stderr


def test_its_own_test_passes(copy: Path) -> None:
    done = run(copy, sys.executable, "-m", "pytest", *(each.test for each in ADDITIONS))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("conformance", sorted({each.conformance for each in ADDITIONS}))
def test_conformance_accepts_it(copy: Path, conformance: str) -> None:
    names = [each.name for each in ADDITIONS if each.conformance == conformance]
    chosen = " or ".join(names)
    if "mechanisms" in conformance:
        # What takes long is tried on the examples in tests/conformance/test_mechanism_checks.py.
        chosen = f"({chosen}) and not compiles and not exports"
    done = run(copy, sys.executable, "-m", "pytest", "-vv", conformance, "-k", chosen)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    for name in names:
        assert re.search(rf"\[(?:\w+-)?{name}\] PASSED", done.stdout), name


def test_lists_documents_and_what_is_frozen_still_hold(copy: Path) -> None:
    rooms = ("models/test_registry.py", "data/test_registry.py", "data/test_published.py", "core/test_catalogue.py")
    tests = [f"tests/{name}" for name in ("test_api.py", "test_documents.py", "cli/test_cli.py", *rooms)]
    # What is frozen is what the package has without the additions.
    frozen = ("tests/test_api.py", "tests/cli/test_cli.py", "-k", "frozen")
    plain = run(copy, sys.executable, "-m", "pytest", *frozen, MEREO_FREEZE="1", PYTHONPATH=str(ROOT / "src"))
    assert plain.returncode == 0, plain.stdout
    chosen = ("-m", "not long", "-k", "(not test_cli or frozen or lists) and not run and not script")
    done = run(copy, sys.executable, "-m", "pytest", *tests, *chosen)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr


def test_types_and_layers_accept_it(copy: Path) -> None:
    changed = sorted({name for each in ADDITIONS for name in (each.home, each.imported_in)})
    # `make format` sorts the new line in.
    run(copy, TOOLS / "ruff", "check", "--fix", "--select", "I", *changed)
    done = run(copy, TOOLS / "ruff", "check", *changed)
    assert done.returncode == 0, done.stdout
    done = run(copy, TOOLS / "lint-imports", "--no-cache")
    assert done.returncode == 0 and " 0 broken" in done.stdout, done.stdout
