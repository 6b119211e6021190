"""The chosen settings compared with a grid: the grid's contents, and one tiny run."""

import pytest
from PIL import Image

from mereo.errors import UsageError
from mereo.training.config import TrainConfig
from mereo.training.run_folder import RunFolder
from papers.common.settings import Settings
from papers.defaults import defaults
from papers.defaults.made_images import KINDS, make_folder
from papers.listing import EXPERIMENTS


def test_the_grid_has_other_batches_rates_sizes_and_networks():
    config = TrainConfig(img_size=32, epochs=18, batch_size=16, lr=2e-3)
    rows = defaults.grid(config)
    assert {(row["batch_size"], row["lr"]) for row in rows.values()} == {
        (b, r) for b in (32, 128) for r in (1e-3, 3e-3)
    }
    assert {"batch_size": 32, "lr": 3e-3} not in defaults.grid(config.replace(batch_size=32, lr=3e-3)).values()
    rows = defaults.others(config)
    assert {row["img_size"] for row in rows.values() if "img_size" in row} == {48}
    assert {row["lr"] for row in rows.values() if row.get("model") == "resnet20"} == {3e-3, 1e-2}


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
    row = {"data": "hands", **dict.fromkeys(("chosen %", "best of grid %", f"{defaults.FORMER} %"), 50.0)}
    monkeypatch.setattr(defaults, "_run", lambda data, settings, folder: trained.append((data, folder)) or row)
    settings = Settings(tmp_path, variants=("hands", "gone"), say=lines.append)
    (rows,) = defaults.run(settings)["tables"].values()
    assert rows == [row] and trained == [(str(tmp_path / "hands"), tmp_path / "hands")]
    assert any(line.startswith("gone is left out") for line in lines)
    monkeypatch.delenv(defaults.PHOTOS)
    assert defaults.photographs() == {}


@pytest.mark.slow
def test_other_networks_have_epochs_of_their_own(tmp_path):
    given, run = {"data": "digits", "limit": 64, "minutes": 0.05}, RunFolder(tmp_path)
    configs = [defaults._as_long(row, given, run) for row in defaults.PLAIN.values()]
    assert [config.lr for config in configs] == [3e-3, 1e-2]
    assert {(config.model, config.img_size) for config in configs} == {("resnet20", 32)}
    run.config.write_text(configs[0].replace(epochs=7).to_yaml())
    assert defaults._as_long({"model": "resnet20"}, given, run).epochs == 7


@pytest.mark.slow
def test_a_row_has_the_chosen_settings_and_the_best_of_the_grid(tmp_path, monkeypatch):
    monkeypatch.setattr(defaults, "BATCHES", (128,))
    monkeypatch.setattr(defaults, "RATES", (1e-3,))
    monkeypatch.setattr(defaults, "SIDES", ())
    monkeypatch.setattr(defaults, "PLAIN", {})
    settings = Settings(tmp_path, variants=("digits",), epochs=1, limit=64, device="cpu", say=lambda line: None)
    results = EXPERIMENTS["defaults"].run(settings)
    (row,) = next(iter(results["tables"].values()))
    assert row["difference %"] == pytest.approx(row["chosen %"] - row["best of grid %"])
    assert row["best of grid"] in ("chosen", "batch 128, rate 0.001") and "batch 16" in row["chosen"]
    assert row["difference %"] <= 0 == row["above resnet20 %"]
    assert (tmp_path / "defaults.png").stat().st_size > 0
    assert EXPERIMENTS["defaults"].run(settings)["tables"] == results["tables"]
