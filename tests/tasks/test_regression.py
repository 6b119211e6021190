"""Numbers for images: metrics against scikit-learn, standardised targets, a training resumed bit for bit."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import mereo
from mereo.data import Batch, ImageSet
from mereo.errors import UsageError
from mereo.export.preprocessing import FromPixels
from mereo.inference.predict import task_of
from mereo.models.weights import read_metadata
from mereo.tasks import Regression
from mereo.tasks.regression import RegressionMetrics
from mereo.training.config import TrainConfig
from mereo.training.trainer import Trainer

NAMES = ("age", "height")


def test_metrics_are_those_of_scikit_learn_over_all_batches() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    torch.manual_seed(0)
    true = torch.randn(30, 2) * torch.tensor([3.0, 100.0])
    outputs = true + torch.randn(30, 2)
    metrics = RegressionMetrics(NAMES)
    for part in (slice(0, 11), slice(11, 30)):
        metrics.update(outputs[part], Batch(values=true[part]))
    each = sklearn.mean_absolute_error(true, outputs, multioutput="raw_values")
    assert metrics.compute() == pytest.approx(
        {
            "r2": sklearn.r2_score(true, outputs),
            "mae": sklearn.mean_absolute_error(true, outputs),
            "rmse": sklearn.root_mean_squared_error(true, outputs),
            "mae age": each[0],
            "mae height": each[1],
        }
    )
    for name, (low, high) in metrics.intervals().items():
        assert low < metrics.compute()[name] < high


def test_numbers_that_are_all_the_same_have_the_r2_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    for outputs in ([2.0, 2.0], [2.0, 3.0]):
        metrics = RegressionMetrics(("age",))
        metrics.update(torch.tensor(outputs)[:, None], Batch(values=torch.full((2, 1), 2.0)))
        assert metrics.compute()["r2"] == sklearn.r2_score([2.0, 2.0], outputs)


def fitted(values: torch.Tensor) -> Regression:
    """The task, fitted to numbers."""
    images, labels = torch.zeros(len(values), 1, 2, 2, dtype=torch.uint8), torch.zeros(len(values), dtype=torch.int64)
    task = Regression(NAMES)
    task.fit(ImageSet(images, labels, NAMES, {"values": values}))
    return task


def test_the_loss_compares_standardised_numbers_and_outputs_have_their_units() -> None:
    torch.manual_seed(0)
    values = torch.randn(6, 2) * torch.tensor([3.0, 100.0]) + 50
    task = fitted(values)
    torch.testing.assert_close(task.mean, values.mean(0))
    torch.testing.assert_close(task.std, values.std(0, correction=0))
    raw, batch = torch.randn(6, 2), Batch(torch.zeros(6, 1), values=values)
    model = nn.Module()
    model.forward = lambda images: raw  # type: ignore[method-assign]
    standard = (values - values.mean(0)) / values.std(0, correction=0)
    for loss in ("mse", "smooth_l1"):
        objective = task.objective(model, TrainConfig(loss=loss))
        value, outputs = objective.step(batch)
        off = (raw - standard).abs()
        wanted = off**2 if loss == "mse" else torch.where(off < 1, off**2 / 2, off - 0.5)
        torch.testing.assert_close(value, wanted.mean())
        torch.testing.assert_close(outputs, raw * values.std(0, correction=0) + values.mean(0))
        torch.testing.assert_close(objective.loss(outputs, batch), value)
        torch.testing.assert_close(task.apply(model, batch), outputs)


def test_mean_and_spread_are_kept_with_the_weights_and_checked() -> None:
    task, again = fitted(torch.tensor([[1.0, 5.0], [3.0, 5.0]])), Regression(NAMES)
    again.restore(task.fitted)
    assert again.mean.tolist() == [2, 5] and again.std.tolist() == [1, 1]  # a spread of 0 divides by nothing
    for damaged in ({"mean": [1.0], "std": [1.0, 1.0]}, {"mean": ["a", 1.0], "std": [1.0, 1.0]}, [1]):
        with pytest.raises(UsageError, match="targets"):
            Regression(NAMES).restore({"targets": damaged})


def folder_of_numbers(folder: Path, count: int = 40) -> Path:
    """Grey squares with their brightness."""
    (folder / "images").mkdir(parents=True)
    rows = ["image,split,brightness"]
    for number in range(count):
        pixels = np.full((8, 8), number * 37 % 256, np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{number:02d}.png")
        split = "test" if number % 5 == 4 else "train"
        rows.append(f"images/{number:02d}.png,{split},{pixels.mean() / 2.55 + 1000:.2f}")
    (folder / "numbers.csv").write_text("\n".join(rows) + "\n")
    return folder


OPTIONS = {"batch_size": 8, "img_size": 8, "device": "cpu", "tensorboard": False, "lr": 0.01, "quiet": True}


def test_a_table_is_trained_evaluated_and_predicted_in_its_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mereo.tasks.interval.RESAMPLES", 20)
    data = folder_of_numbers(tmp_path / "data")
    run = mereo.train(data=str(data), epochs=3, output=str(tmp_path), **OPTIONS)
    assert run.task.name == "regression"
    held = read_metadata(run.folder.best)["targets"]
    assert 1000 < held["mean"][0] < 1100
    (figures,) = mereo.evaluate(run).models.values()
    assert figures["metrics"]["rmse"] == run.test_best.values["rmse"] and "r2" in figures["intervals"]
    predictions = mereo.predict(run, str(data / "images"), out=tmp_path / "out")
    assert all(500 < item.values["brightness"] < 1600 for item in predictions)
    table = (tmp_path / "out" / "predictions.csv").read_text("utf-8-sig")
    assert table.splitlines()[0] == "image,predicted brightness"
    # A table of others is read by the column of the network.
    other = tmp_path / "other.csv"
    lines = (data / "numbers.csv").read_text().replace("images/", "data/images/").splitlines()
    other.write_text("\n".join([f"{lines[0]},other", *(f"{line},0.5" for line in lines[1:])]))
    (figures,) = mereo.evaluate(run, data=str(other)).models.values()
    assert figures["metrics"]["rmse"] == run.test_best.values["rmse"]


@pytest.mark.long
def test_arrays_with_numbers_or_several_labels_are_trained_and_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mereo.tasks.interval.RESAMPLES", 2)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 8, 8), np.uint8)
    brightness = pixels.reshape(40, -1).mean(1)
    bits = np.stack([brightness > brightness.mean(), pixels[:, 0, 0] > 99], 1).astype(int)
    for labels, task, names in ((brightness, "regression", ("0",)), (bits, "multilabel", ("0", "1"))):
        run = mereo.train(data=(pixels, labels), epochs=1, output=str(tmp_path), name=task, **OPTIONS)
        assert run.task.name == task and run.model.class_names == names
        (figures,) = mereo.evaluate(run, data=(pixels, labels)).models.values()
        assert figures["count"] == 40
        with pytest.raises(UsageError, match=r"labels .*\(40, 3\) for 40 images"):
            mereo.evaluate(run, data=(pixels, np.zeros((40, 3))))


def test_an_exported_file_of_pixels_gives_the_numbers_in_their_units() -> None:
    model = mereo.create_model("resnet20", num_classes=2, in_chans=1, img_size=8).eval()
    model.class_names = NAMES
    model.metadata = {"task": "regression", "targets": {"mean": [50.0, -3.0], "std": [7.0, 0.5]}}
    pixels = torch.randint(0, 256, (1, 8, 8, 3), dtype=torch.uint8)
    module = FromPixels(model)
    scores, values = module(pixels)
    assert module.finished == "values"
    torch.testing.assert_close(values, scores * torch.tensor([7.0, 0.5]) + torch.tensor([50.0, -3.0]))
    assert "age = 7 output + 50" in task_of(model).outputs_in_words()


def test_a_resumed_training_repeats_an_uninterrupted_one_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mereo.tasks.interval.RESAMPLES", 2)
    data = folder_of_numbers(tmp_path / "data")

    def train(name: str, **options: object) -> mereo.api.Training:
        return mereo.train(data=str(data), output=str(tmp_path), name=name, epochs=3, **OPTIONS, **options)

    whole = train("whole")
    with monkeypatch.context() as patch:
        kept = Trainer.train_epoch

        def stopped(self: Trainer, epoch: int, first: int) -> dict[str, object]:
            if epoch == 2:
                raise KeyboardInterrupt
            return kept(self, epoch, first)

        patch.setattr(Trainer, "train_epoch", stopped)
        with pytest.raises(KeyboardInterrupt):
            train("resumed")
    resumed = train("resumed", resume=True)
    assert whole.results["test_best"] == resumed.results["test_best"]
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_an_exported_folder_keeps_the_units_of_numbers(tmp_path: Path) -> None:
    model = mereo.create_model("resnet20", num_classes=2, img_size=8)
    targets = {"mean": [50.0, -3.0], "std": [7.0, 0.5]}
    mereo.save_weights(tmp_path / "a.safetensors", model, class_names=NAMES, task="regression", targets=targets)
    model = mereo.load(tmp_path / "a.safetensors")
    again = mereo.from_pretrained(mereo.save_pretrained(model, tmp_path / "folder"))
    assert task_of(again).fitted["targets"] == targets
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    (given,), (kept,) = mereo.predict(model, image), mereo.predict(again, image)
    assert kept.values == pytest.approx(given.values)
