"""One plan for everything, and one scan of an image folder."""

import pytest
from PIL import Image

from mereo.cli.main import main
from mereo.data import layout, sources
from mereo.export.rows import run_comparison
from mereo.training.config import TrainConfig
from mereo.training.plan import make_plan, resolve
from mereo.training.studies import Study, Variant, finish_runs, plan_runs


@pytest.fixture
def scans(tmp_path, monkeypatch) -> list[str]:
    """The image folder photos/, and how often its tree is read from here on."""
    for place, count in (("train/cat", 6), ("train/dog", 6), ("test/cat", 2), ("test/dog", 2)):
        (tmp_path / "photos" / place).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (16, 16), (20 * number, 90, 10)).save(tmp_path / "photos" / place / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    found: list[str] = []
    read = layout.open_tree

    def counted(path):
        found.append(str(path))
        return read(path)

    monkeypatch.setattr(layout, "open_tree", counted)
    return found


SMALL = ["--data", "photos", "--model-args", "channels=[4,8,8]", "patch_size=2", "img_size=16", "--device", "cpu",
         "--epochs", "1", "--batch-size", "4"]  # fmt: skip


@pytest.mark.parametrize("words", [["--no-tensorboard"], ["--dry-run"]], ids=str)
def test_a_command_scans_its_folder_once(scans, words):
    assert main(["train", *SMALL, *words]) == 0
    assert scans == ["photos"]


def test_a_study_scans_its_folder_once_for_all_runs(scans, tmp_path):
    study = Study("", "", None, {"plain": Variant(), "frozen": Variant({"freeze": ["stem"]})})
    overrides = {
        "data": "photos", "model_args": {"channels": [4, 8, 8], "img_size": 16, "patch_size": 2}, "device": "cpu",
        "batch_size": 4, "epochs": 1, "tensorboard": False,
    }  # fmt: skip
    configs = plan_runs(study, "two", 1, str(tmp_path / "runs"), overrides)
    configs = {key: config.replace(freeze=()) for key, config in configs.items()}
    results = finish_runs(configs, lambda line: None)
    assert results.keys() == {"plain", "frozen"}
    assert scans == ["photos"]


def test_a_comparison_scans_its_folder_once(scans, tmp_path):
    overrides = {"data": "photos", "device": "cpu", "batch_size": 4, "epochs": 1, "tensorboard": False, "img_size": 16}
    networks = ["mspcaps_tiny:channels=[4,8,8],patch_size=2", "mspcaps_tiny:channels=[4,8,12],patch_size=2"]
    rows = run_comparison(networks, 1, str(tmp_path / "runs"), overrides, say=lambda line: None)
    assert len(rows) == 2
    assert scans == ["photos"]


def test_a_plan_is_a_fixed_point():
    plan = make_plan(TrainConfig(device="cpu"))
    assert resolve(plan.config) == plan.config
    assert plan.config.loss == "margin" and plan.arguments["num_classes"] == 10
    assert plan.steps(100) == (100, 1) and plan.steps(1000) == (128, 7)


def test_info_of_a_folder_is_that_of_its_data(scans):
    info = sources.dataset_info("photos")
    dataset = sources.open_dataset("photos", info=info)
    assert dataset.class_names == ("cat", "dog") and len(dataset.splits["train"]) == info.splits["train"] == 12
