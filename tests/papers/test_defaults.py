"""The chosen settings compared with a plain network: its settings, and one tiny run."""

import json

import pytest
from PIL import Image

from mereo.errors import UsageError
from mereo.training.run_folder import RunFolder
from papers.common.settings import Settings
from papers.defaults import defaults
from papers.defaults.made_images import KINDS, make_folder
from papers.listing import EXPERIMENTS


@pytest.mark.parametrize("kind", KINDS)
def test_images_are_made_once_from_a_seed(tmp_path, kind):
    first, second = make_folder(tmp_path / "a", kind, 2), make_folder(tmp_path / "b", kind, 2)
    files = sorted(path.relative_to(first) for path in first.rglob("*.jpg"))
    assert len(files) == 2 * len(KINDS[kind][1])
    assert all((first / file).read_bytes() == (second / file).read_bytes() for file in files)
    assert len({(first / file).read_bytes() for file in files}) == len(files)
    with Image.open(first / files[0]) as image:
        assert image.size == (KINDS[kind][3],) * 2


def test_unknown_and_missing_sets_are_refused(tmp_path):
    with pytest.raises(UsageError, match="variants"):
        defaults.run(Settings(tmp_path, variants=("digitz",)))


def test_folders_of_photographs_come_from_the_environment_and_missing_ones_are_left_out(tmp_path, monkeypatch):
    lines, trained = [], []
    monkeypatch.setenv(defaults.PHOTOS, f"{tmp_path / 'hands'}:{tmp_path / 'gone'}")
    (tmp_path / "hands").mkdir()
    row = {"data": "hands", **dict.fromkeys(("chosen %", "plain %"), 50.0)}
    monkeypatch.setattr(defaults, "_run", lambda data, settings, folder: trained.append((data, folder)) or row)
    settings = Settings(tmp_path, variants=("hands", "gone"), say=lines.append)
    (rows,) = defaults.run(settings)["tables"].values()
    assert rows == [row] and trained == [(str(tmp_path / "hands"), tmp_path / "hands")]
    assert any(line.startswith("gone is left out") for line in lines)
    monkeypatch.delenv(defaults.PHOTOS)
    assert defaults.photographs() == {}


@pytest.mark.long
def test_other_networks_have_epochs_of_their_own(tmp_path):
    given, run = {"data": "digits", "limit": 64, "minutes": 0.05}, RunFolder(tmp_path)
    configs = [defaults._as_long(row, given, run) for row in defaults.PLAIN.values()]
    assert [config.lr for config in configs] == [3e-3, 1e-2]
    assert {(config.model, config.img_size) for config in configs} == {("resnet20", 32)}
    run.config.write_text(configs[0].replace(epochs=7).to_yaml())
    assert defaults._as_long({"model": "resnet20"}, given, run).epochs == 7


@pytest.mark.long
def test_a_row_compares_the_chosen_settings_with_the_better_rate_of_the_plain_network(tmp_path):
    settings = Settings(tmp_path, variants=("digits",), epochs=1, limit=64, device="cpu", say=lambda line: None)
    results = EXPERIMENTS["defaults"].run(settings)
    (row,) = next(iter(results["tables"].values()))
    trained = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.rglob("results.json")}
    plain = [run["test_best"]["accuracy"] for name, run in trained.items() if name.startswith("rate")]
    assert len(plain) == 2 and row["plain %"] == pytest.approx(100 * max(plain))
    assert row["chosen %"] == pytest.approx(100 * trained["chosen-seed0"]["test_best"]["accuracy"])
    assert row["difference %"] == pytest.approx(row["chosen %"] - row["plain %"])
    assert row["network"] == "mspcaps_tiny" and row["batch"] == 16 and row["epochs"] == 1
    assert 0 < row["standard error %"] < 5
    assert (tmp_path / "defaults.png").stat().st_size > 0
    assert EXPERIMENTS["defaults"].run(settings)["tables"] == results["tables"]
