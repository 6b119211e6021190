"""Every experiment runs in its smallest form, writes what it says, and has finite figures."""

import json
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from papers.checks import find_table, read_claims
from papers.common.paper import SMALLEST
from papers.common.settings import Settings
from papers.listing import EXPERIMENTS, NAMES, PAPERS, STUDIES
from papers.reproduce import results_of

ROOT = Path(__file__).parents[2] / "papers"


def smallest(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    experiment = EXPERIMENTS[name]
    module = import_module(experiment.module)
    for constant, value in experiment.constants.items():
        assert hasattr(module, constant), constant
        monkeypatch.setattr(module, constant, value)
    given = {key: value for key, value in {**SMALLEST, **experiment.smallest}.items() if key in experiment.uses}
    return experiment.run(Settings(folder, **given, say=lambda line: None))


def numbers(value: Any) -> list[float]:
    """All numbers of nested lists and dicts."""
    if isinstance(value, dict):
        return [number for each in value.values() for number in numbers(each)]
    if isinstance(value, list | tuple):
        return [number for each in value for number in numbers(each)]
    return [value] if isinstance(value, float) else []


@pytest.mark.long
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_smallest_form(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = smallest(name, tmp_path, monkeypatch)
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads(json.dumps(results))
    assert results["tables"] and all(results["tables"].values())
    for rows in results["tables"].values():
        assert all(row.keys() == rows[0].keys() for row in rows)
    assert all(map(math.isfinite, numbers(results["tables"])))
    assert set(results["files"]) >= {str(tmp_path / name) for name in results.get("pictures", ())}
    for picture in results.get("pictures", ()):
        with Image.open(tmp_path / picture) as image:
            assert min(image.size) > 100 and len(image.convert("L").getcolors() or ()) > 5
    # What `python -m papers check` compares is in the results.
    for paper in NAMES:
        for claim in read_claims(ROOT / paper / "claims.md"):
            if claim.commands[0].split()[2].replace("-", "_") == name:
                assert all(find_table(limit, results["tables"]) for limit in claim.limits if limit.table is None)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(STUDIES.keys() - EXPERIMENTS.keys()))
def test_the_smallest_form_of_a_study(name: str, tmp_path: Path) -> None:
    variant = list(STUDIES[name].variants)[-1]
    given = {key: SMALLEST[key] for key in ("data", "epochs", "limit", "batch_size")}
    given |= {"warmup_epochs": 0.0, "device": "cpu", "variants": (variant,)}
    (rows,) = results_of(name, given, tmp_path).values()
    assert [row["variant"] for row in rows] == [variant] and 0 <= rows[0]["last"] <= 100


def test_every_module_with_a_run_is_an_experiment() -> None:
    modules = {experiment.module for experiment in EXPERIMENTS.values()}
    files = [path for path in ROOT.glob("*/*.py") if "\ndef run(settings: Settings)" in path.read_text()]
    assert {".".join(path.relative_to(ROOT.parent).with_suffix("").parts) for path in files} == modules


def test_every_folder_is_a_paper_with_a_page() -> None:
    folders = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()} - {"common"}
    assert folders == set(NAMES)
    for name in NAMES:
        page = (ROOT / name / "claims.md").read_text()
        assert page.startswith(f"# {PAPERS[name].title}")
        for experiment in PAPERS[name].experiments:
            assert EXPERIMENTS[experiment].module.startswith(f"papers.{name}.")
