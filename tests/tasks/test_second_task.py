"""A task of one file, regression of brightness, that trains, evaluates, resumes and predicts through the engine."""

import csv
import json
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import mereo
import mereo.explain
import mereo.measure
from mereo.cli.main import main
from mereo.data import Batch
from mereo.errors import UsageError
from mereo.inference.evaluate import normalise
from mereo.inference.predict import predict
from mereo.models.weights import load_tensors
from mereo.tasks import TASKS, Metrics, Objective, Task, register_task
from mereo.tasks.pictures import draw_images
from mereo.training.config import TrainConfig
from mereo.training.estimate import estimate
from mereo.training.report import Report
from mereo.training.trainer import Trainer, train
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

    def predict(self, outputs, top=3):
        return [{"quarters": row} for row in outputs.tolist()]

    def example(self, model, count, objects=1):
        images = torch.rand(count, *model.image_shape)
        return Batch(images, torch.zeros(count, dtype=torch.int64), images)

    def draw(self, model, batch, prepared, path):
        draw_images(batch.images, [str(row["quarters"][0])[:4] for row in self.predict(model(prepared.images))], path)


@pytest.fixture(scope="module", autouse=True)
def _registered():
    register_task(Brightness)
    yield
    del TASKS["brightness"]


def make_config(output, **changes):
    fields = {
        "task": "brightness", "model_args": {"channels": [4, 8, 8], "img_size": 16, "patch_size": 2}, "limit": 64,
        "batch_size": 32, "epochs": 2, "output": str(output), "tensorboard": False, "device": "cpu",
    }  # fmt: skip
    return TrainConfig().replace(**{**fields, **changes})


@pytest.fixture
def config(tmp_path):
    return partial(make_config, tmp_path / "runs")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, _registered):
    """The folder of a finished run."""
    output = tmp_path_factory.mktemp("brightness")
    return train(make_config(output, name="run", epochs=1), Report(silent=True)).folder.path


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
    kept = [csv.DictReader(result.folder.history.read_text().splitlines()) for result in (whole, resumed)]
    trained = [[(row["train_loss"], row["train_error"]) for row in rows] for rows in kept]
    assert trained[0] == trained[1], "the sums of the epoch that was interrupted are kept"


def test_it_predicts_files_and_has_a_dry_run(config, tmp_path):
    result = train(config(name="run", epochs=1), Report(silent=True))
    picture(3).save(tmp_path / "image.png")
    model = mereo.load(result.folder.path)
    assert model.num_classes == QUARTERS and model.metadata["task"] == "brightness"
    (prediction,) = predict(model, [tmp_path / "image.png"])
    assert prediction.to_dict().keys() == {"path", "quarters"} and len(prediction.values["quarters"]) == QUARTERS
    assert estimate(config(), measure=False).parameters == sum(p.numel() for p in model.parameters())


def test_the_command_line_trains_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--model-args", "channels=[4,8,8]", "--limit", "64", "--epochs", "1", "--device", "cpu"]
    assert main(["train", "--task", "brightness", "--name", "run", "--no-tensorboard", *words]) == 0
    assert "test error" in capsys.readouterr().out
    picture(3).save("image.png")
    assert main(["predict", "image.png", "--weights", "runs/run"]) == 0
    assert "quarters" in capsys.readouterr().out


@pytest.fixture
def call(tmp_path, monkeypatch, capsys, trained):
    """call(*words): a command next to a finished run of the task, run/, and an image."""
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    Path("runs/run").symlink_to(trained)
    picture(3).save("image.png")

    def run(*words):
        code = main([*words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_evaluate_reports_the_metrics_of_the_task(call):
    code, out, err = call("evaluate", "runs/run", "--limit", "20", "--corruptions", "--attack", "pgd", "--equivariance")
    assert code == 0, err
    document = json.loads((Path("evaluation") / "report.json").read_text())
    model = document["models"]["run"]
    assert document["task"] == "brightness" and model["count"] == 20 and model["metrics"].keys() == {"error"}
    assert model["not_measured"].keys() == {"calibration", "corruptions", "attacks", "equivariance"}
    assert "one score for each class" in out and "one score for each class" in Path("evaluation/report.md").read_text()
    split = mereo.measure.load_trained_models([Path("runs/run")], limit=20)[0].split
    errors = []
    for image in split.batch(torch.arange(20), crop=(16, 16)).images:
        cfg = mereo.load("runs/run").pretrained_cfg
        with torch.no_grad():
            scores = mereo.load("runs/run")(normalise(image[None], cfg["mean"], cfg["std"]))
        errors.append((scores - brightness(Batch(None, None, image[None]))).abs().mean().item())
    assert model["metrics"]["error"] == pytest.approx(sum(errors) / 20, abs=1e-5)


def test_tasks_are_not_mixed_in_a_report(call):
    names = tuple(str(n) for n in range(10))
    digits = mereo.create_model("mspcaps_tiny", channels=(4, 8, 8), in_chans=1, img_size=16, patch_size=2)
    mereo.save_weights("digits.safetensors", digits, class_names=names, data="digits")
    code, _, err = call("evaluate", "runs/run", "digits.safetensors")
    assert code == 2 and "brightness and classification" in err


def test_explain_shows_outputs(call):
    words = ("--weights", "runs/run", "--out", "seen", "--only", "gradients", "page")
    code, out, err = call("explain", "image.png", *words)
    assert code == 0, err
    assert "seen/trees.html" in out and Path("seen/gradients.png").stat().st_size
    images = torch.rand(2, *mereo.load("runs/run").image_shape)
    assert mereo.explain.explain(mereo.load("runs/run"), images).kind == "outputs"


@pytest.mark.long
def test_an_exported_network_keeps_its_task(call):
    code, out, err = call("export", "runs/run", "--to", "hub", "torch", "--precision", "fp32", "--out", "net")
    assert code == 0, err
    model = mereo.load("net")
    assert model.metadata["task"] == "brightness" and model.num_classes == QUARTERS
    card = Path("net/README.md").read_text()
    assert "test error" in card and "belong to the task brightness" in card and "image-classification" not in card
    code, out, err = call("predict", "image.png", "--weights", "net", "--json")
    assert code == 0 and json.loads(out)["predictions"][0].keys() == {"path", "quarters"}
    code, out, err = call("export", "runs/run", "--to", "torch", "--precision", "bf16", "--limit", "20", "--out", "low")
    assert code == 0 and "error" in out.splitlines()[-3], err


@pytest.mark.long
def test_compare_ranks_by_the_metric_of_the_task(call, monkeypatch):
    monkeypatch.setattr("mereo.training.compare.REPEATS", 1)
    networks = [f"mspcaps_tiny:channels=[4,8,8],patch_size=2,depth={depth}" for depth in (1, 2)]
    words = ["--task", "brightness", "--epochs", "1", "--limit", "64", "--batch-size", "32", "--img-size", "16"]
    code, out, err = call("compare", *networks, *words, "--device", "cpu")
    assert code == 0, err
    rows = json.loads(Path("runs/compare-digits/comparison.json").read_text())["networks"]
    assert rows[0]["error"] < rows[1]["error"], "less is better"
    assert "test error" in out and "Test error is the mean over the seeds" in out


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
