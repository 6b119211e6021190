"""A task of one file, the example of the centroid, that trains, evaluates, resumes and predicts through the engine."""

import csv
import json

import pytest
import torch

import mereo
from example_files import FOLDER, execute
from mereo.errors import UsageError
from mereo.inference.predict import predict
from mereo.models.weights import load_tensors
from mereo.tasks import TASKS
from mereo.training.config import TrainConfig
from mereo.training.engine import Trainer, train
from mereo.training.estimate import estimate
from mereo.training.report import Report
from pictures import picture


@pytest.fixture(autouse=True)
def centroid():
    before = dict(TASKS)
    TASKS.pop("centroid", None)
    yield execute(FOLDER / "tasks" / "centroid.py").Centroid
    TASKS.clear()
    TASKS.update(before)


@pytest.fixture
def config(tmp_path):
    def make(**changes):
        fields = {
            "task": "centroid", "model_args": {"channels": [4, 8, 8], "img_size": 16, "patch_size": 2}, "limit": 64,
            "batch_size": 32, "epochs": 2, "output": str(tmp_path / "runs"), "tensorboard": False, "device": "cpu",
        }  # fmt: skip
        return TrainConfig().replace(**{**fields, **changes})

    return make


def test_it_trains_and_keeps_its_own_figures(config):
    result = train(config(name="run", epochs=4, lr=5e-3), Report(silent=True))
    rows = list(csv.DictReader(result.folder.history.read_text().splitlines()))
    assert list(rows[0]) == [
        "epoch", "lr", "train_loss", "train_distance", "val_loss", "val_distance", "images_per_second", "seconds"
    ]  # fmt: skip
    assert float(rows[-1]["train_loss"]) < float(rows[0]["train_loss"])
    best = min(rows, key=lambda row: float(row["val_distance"]))
    results = json.loads(result.folder.results.read_text())
    assert results["best_epoch"] == int(best["epoch"]), "the least distance is the best"
    assert results["test_last"].keys() == {"count", "distance", "loss"}
    assert all(path.stat().st_size for path in (result.folder.curves, result.folder.test_samples))


def test_it_resumes_to_the_same_weights(config, monkeypatch):
    whole = train(config(name="whole", checkpoint_seconds=1e-9), Report(silent=True))
    optimise, calls = Trainer.optimise, []

    def stopping(self, *arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return optimise(self, *arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "optimise", stopping)
        train(config(name="part", checkpoint_seconds=1e-9), Report(silent=True))
    resumed = train(config(name="part", resume=True, checkpoint_seconds=1e-9), Report(silent=True))
    a, b = (load_tensors(result.folder.last)[0] for result in (whole, resumed))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert whole.test_last == resumed.test_last


def test_it_predicts_files_and_has_a_dry_run(config, tmp_path):
    result = train(config(name="run", epochs=1), Report(silent=True))
    picture(3).save(tmp_path / "image.png")
    model = mereo.load(result.folder.path)
    assert model.num_classes == 2 and model.metadata["task"] == "centroid"
    (prediction,) = predict(model, [tmp_path / "image.png"])
    assert prediction.to_dict().keys() == {"path", "row", "column"}
    assert estimate(config(), measure=False).parameters == sum(p.numel() for p in model.parameters())


def test_the_command_line_trains_it(tmp_path, monkeypatch, capsys):
    from mereo.cli.main import main

    monkeypatch.chdir(tmp_path)
    words = ["--model-args", "channels=[4,8,8]", "--limit", "64", "--epochs", "1", "--device", "cpu"]
    assert main(["train", "--task", "centroid", "--name", "run", "--no-tensorboard", *words]) == 0
    assert "test distance" in capsys.readouterr().out
    picture(3).save("image.png")
    assert main(["predict", "image.png", "--weights", "runs/run"]) == 0
    assert "column" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "fact"), [({"task": "centroids"}, "'centroid'"), ({"loss": "margin"}, "loss of the task centroid")]
)
def test_unknown_tasks_and_losses_are_named(config, changes, fact):
    with pytest.raises(UsageError, match=fact):
        train(config(**changes), Report(silent=True))


def test_a_field_that_the_data_lacks_is_named(config, monkeypatch, centroid):
    monkeypatch.setattr(centroid, "requires", ("images", "masks"))
    with pytest.raises(UsageError, match="needs masks"):
        train(config(), Report(silent=True))
