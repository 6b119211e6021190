"""The chosen settings compared with a grid: the grid's contents, and one tiny run."""

import pytest
from PIL import Image

from mereo.errors import UsageError
from mereo.experiments import EXPERIMENTS, Settings, defaults
from mereo.experiments.made_images import KINDS, make_folder
from mereo.training.config import TrainConfig
from mereo.training.run_folder import RunFolder


def test_the_grid_trains_on_as_many_pixels_at_every_size():
    config = TrainConfig(img_size=32, epochs=18, batch_size=16, lr=2e-3)
    rows = defaults.grid(config)
    for changes in rows.values():
        changed = config.replace(**changes)
        assert changed.epochs * changed.img_size**2 == pytest.approx(18 * 32**2, rel=0.1)
    assert {(row.get("batch_size"), row.get("lr")) for row in rows.values()} >= {(32, 3e-3), (128, 1e-3)}
    assert {"batch_size": 32, "lr": 3e-3} not in defaults.grid(config.replace(batch_size=32, lr=3e-3)).values()
    assert any(row.get("img_size") == 48 for row in rows.values())


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


@pytest.mark.slow
def test_plain_networks_have_epochs_of_their_own(tmp_path):
    given = {"data": "digits", "limit": 64, "minutes": 0.05}
    rows = defaults.PLAIN
    assert {row["lr"] for row in rows.values()} == {3e-3, 1e-2}
    configs = [defaults._plain(row, given, RunFolder(tmp_path)) for row in rows.values()]
    assert [config.lr for config in configs] == [3e-3, 1e-2]
    assert {(config.model, config.img_size) for config in configs} == {("resnet20", 32)}
    RunFolder(tmp_path).config.write_text(configs[0].replace(epochs=7).to_yaml())
    assert defaults._plain(rows["resnet20, rate 0.01"], given, RunFolder(tmp_path)).epochs == 7


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
    assert row["difference %"] <= 0
    assert (tmp_path / "defaults.png").stat().st_size > 0
    assert EXPERIMENTS["defaults"].run(settings)["tables"] == results["tables"]
