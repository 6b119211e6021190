"""A task of one file, regression of brightness, that trains, evaluates, resumes and predicts through the engine."""

import csv
import json

import pytest
import torch
from torch import nn

import mereo
from mereo.data import Batch
from mereo.errors import UsageError
from mereo.inference.predict import predict
from mereo.models.weights import load_tensors
from mereo.tasks import TASKS, Metrics, Objective, Task, register_task
from mereo.tasks.pictures import draw_images
from mereo.training.config import TrainConfig
from mereo.training.engine import Trainer, train
from mereo.training.estimate import estimate
from mereo.training.report import Report
from pictures import picture

QUARTERS = 4


def brightness(batch):
    """Mean of each quarter of an image: (batch, 4)."""
    return nn.functional.adaptive_avg_pool2d(batch.targets.mean(1, keepdim=True), 2).flatten(1)


class BrightnessObjective(Objective):
    def forward(self, batch):
        outputs = self.model(batch.images)
        return self.loss(outputs, batch), outputs

    def loss(self, outputs, batch):
        return nn.functional.mse_loss(outputs, brightness(batch))


class Errors(Metrics):
    def update(self, outputs, batch):
        errors = (outputs - brightness(batch)).abs()
        self.add(outputs.new_tensor(len(outputs)), errors.mean(1).sum())

    def compute(self):
        count, total = self.state.tolist()
        return {"error": total / max(count, 1)}


class Brightness(Task):
    name = "brightness"
    chooses = ("error", "min")

    def num_outputs(self, num_classes):
        return QUARTERS

    def objective(self, model, settings):
        return BrightnessObjective(model)

    def metrics(self):
        return Errors(2)

    def batch_metric(self, outputs, batch):
        return (outputs - brightness(batch)).abs().mean()

    def predict(self, outputs, top=3):
        return [{"quarters": row} for row in outputs.tolist()]

    def example(self, model, count, objects=1):
        images = torch.rand(count, *model.image_shape)
        return Batch(images, torch.zeros(count, dtype=torch.int64), images)

    def draw(self, model, batch, prepared, path):
        draw_images(batch.images, [str(row["quarters"][0])[:4] for row in self.predict(model(prepared.images))], path)


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.delitem(TASKS, "brightness", raising=False)
    register_task(Brightness)
    yield
    del TASKS["brightness"]


@pytest.fixture
def config(tmp_path):
    def make(**changes):
        fields = {
            "task": "brightness", "model_args": {"channels": [4, 8, 8], "img_size": 16, "patch_size": 2}, "limit": 64,
            "batch_size": 32, "epochs": 2, "output": str(tmp_path / "runs"), "tensorboard": False, "device": "cpu",
        }  # fmt: skip
        return TrainConfig().replace(**{**fields, **changes})

    return make


def test_it_trains_and_keeps_its_own_figures(config):
    result = train(config(name="run", epochs=4, lr=5e-3), Report(silent=True))
    rows = list(csv.DictReader(result.folder.history.read_text().splitlines()))
    assert list(rows[0]) == [
        "epoch", "lr", "train_loss", "train_error", "val_loss", "val_error", "images_per_second", "seconds"
    ]  # fmt: skip
    assert float(rows[-1]["train_loss"]) < float(rows[0]["train_loss"])
    best = min(rows, key=lambda row: float(row["val_error"]))
    results = json.loads(result.folder.results.read_text())
    assert results["best_epoch"] == int(best["epoch"]), "the least error is the best"
    assert results["test_last"].keys() == {"count", "error", "loss"}
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
    assert model.num_classes == QUARTERS and model.metadata["task"] == "brightness"
    (prediction,) = predict(model, [tmp_path / "image.png"])
    assert prediction.to_dict().keys() == {"path", "quarters"} and len(prediction.values["quarters"]) == QUARTERS
    assert estimate(config(), measure=False).parameters == sum(p.numel() for p in model.parameters())


def test_the_command_line_trains_it(tmp_path, monkeypatch, capsys):
    from mereo.cli.main import main

    monkeypatch.chdir(tmp_path)
    words = ["--model-args", "channels=[4,8,8]", "--limit", "64", "--epochs", "1", "--device", "cpu"]
    assert main(["train", "--task", "brightness", "--name", "run", "--no-tensorboard", *words]) == 0
    assert "test error" in capsys.readouterr().out
    picture(3).save("image.png")
    assert main(["predict", "image.png", "--weights", "runs/run"]) == 0
    assert "quarters" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "fact"), [({"task": "brightnes"}, "'brightness'"), ({"loss": "margin"}, "loss of the task brightness")]
)
def test_unknown_tasks_and_losses_are_named(config, changes, fact):
    with pytest.raises(UsageError, match=fact):
        train(config(**changes), Report(silent=True))


def test_a_field_that_the_data_lacks_is_named(config, monkeypatch):
    monkeypatch.setattr(Brightness, "requires", ("images", "masks"))
    with pytest.raises(UsageError, match="needs masks"):
        train(config(), Report(silent=True))
