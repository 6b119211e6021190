"""Several labels of an image: metrics against scikit-learn, losses against loops, a training resumed bit for bit."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import mereo
from mereo.cli.main import main
from mereo.data import Batch
from mereo.errors import UsageError
from mereo.tasks import Multilabel
from mereo.tasks.multilabel import MultilabelMetrics, MultilabelObjective, average_precision
from mereo.tasks.several_outputs import logits_of
from mereo.training.config import TrainConfig

NAMES = ("cat", "dog", "eel")


def test_metrics_are_those_of_scikit_learn_over_all_batches() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    torch.manual_seed(0)
    scores, true = torch.randn(40, 3).round(decimals=1), torch.randint(2, (40, 3))  # with equal scores
    metrics = MultilabelMetrics(NAMES, 0.4)
    for part in (slice(0, 7), slice(7, 40)):
        metrics.update(scores[part], Batch(multi_hot=true[part]))
    predicted = (scores.sigmoid() >= 0.4).numpy()
    assert metrics.compute() == pytest.approx(
        {
            "mean_average_precision": sklearn.average_precision_score(true, scores, average="macro"),
            "f1_macro": sklearn.f1_score(true, predicted, average="macro"),
            "f1_micro": sklearn.f1_score(true, predicted, average="micro"),
            "exact_match": sklearn.accuracy_score(true, predicted),
            **{
                f"average_precision {name}": sklearn.average_precision_score(true[:, n], scores[:, n])
                for n, name in enumerate(NAMES)
            },
        }
    )
    for name, (low, high) in metrics.intervals().items():
        assert low < metrics.compute()[name] < high


def test_a_label_that_no_image_has_is_left_out_of_the_mean() -> None:
    true = torch.tensor([[1, 0], [0, 0], [1, 0]])
    areas = average_precision(torch.tensor([[0.9, 0.1], [0.8, 0.3], [0.1, 0.2]]), true)
    assert areas[0] == pytest.approx((1 + 2 / 3) / 2) and areas[1].isnan()
    metrics = MultilabelMetrics(("a", "b"), 0.5)
    metrics.update(torch.tensor([[9.0, -9], [-9, -9], [9, -9]]), Batch(multi_hot=true))
    assert metrics.compute()["mean_average_precision"] == 1 and metrics.compute()["f1_macro"] == 0.5


def test_losses_are_those_of_loops() -> None:
    torch.manual_seed(0)
    scores, true = torch.randn(4, 3), torch.randint(2, (4, 3))
    batch, model = Batch(multi_hot=true), nn.Identity()
    shares = scores.sigmoid()
    pairs = [*zip(shares.flatten(), true.flatten(), strict=True)]
    entropy = -sum((p if t else 1 - p).log() for p, t in pairs)
    torch.testing.assert_close(MultilabelObjective(model, "binary_cross_entropy").loss(scores, batch), entropy / 12)
    margin = sum((0.9 - p).clamp(min=0) ** 2 if t else 0.5 * (p - 0.1).clamp(min=0) ** 2 for p, t in pairs)
    torch.testing.assert_close(MultilabelObjective(model, "margin").loss(scores, batch), margin / 4)


def test_lengths_of_capsules_are_probabilities() -> None:
    model = mereo.create_model("mspcaps_tiny", num_classes=3, in_chans=1, img_size=16).eval()
    images = torch.rand(2, 1, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(logits_of(model, Batch(images)).sigmoid(), model(images), atol=1e-3, rtol=0)
    assert Multilabel().resolve_loss("auto", type(model)) == "margin"


def folder_of_labels(folder: Path, count: int = 40) -> Path:
    """Squares that are red, green or both, each label a column of a table."""
    (folder / "images").mkdir(parents=True)
    rows, generator = ["image,split,labels"], np.random.default_rng(0)
    for number in range(count):
        red, green = number % 2, number // 2 % 2
        pixels = generator.integers(0, 60, (8, 8, 3)) + np.array([180 * red, 180 * green, 0])
        Image.fromarray(pixels.astype(np.uint8)).save(folder / "images" / f"{number:02d}.png")
        split, labels = "test" if number % 5 > 3 else "train", ["red"] * red + ["green"] * green
        rows.append(f"{number:02d}.png,{split},{';'.join(labels)}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.mark.long
def test_a_folder_is_trained_evaluated_predicted_and_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mereo.tasks.interval.RESAMPLES", 20)
    data = str(folder_of_labels(tmp_path / "data"))
    run = mereo.train(data=data, epochs=2, batch_size=8, img_size=8, device="cpu", tensorboard=False, lr=0.01)
    first = capsys.readouterr().out.splitlines()[0]
    assert "several labels" in first and "task multilabel" in first and "10 images have none" in first
    assert run.task.name == "multilabel" and run.model.class_names == ("green", "red")
    assert {"mean_average_precision", "mean_average_precision_low"} <= run.results["test_best"].keys()
    figures = mereo.evaluate(run).models
    assert next(iter(figures.values()))["metrics"]["exact_match"] == run.test_best.values["exact_match"]
    written = mereo.predict(run, str(tmp_path / "data" / "images" / "0*.png"), out=tmp_path / "out").written
    lines = (tmp_path / "out" / "predictions.csv").read_text("utf-8-sig").splitlines()
    assert lines[0] == "image,labels,green,red" and len(lines) == 11 and tmp_path / "out" / "predictions.png" in written
    explained = mereo.explain(run, str(tmp_path / "data" / "images" / "01.png"), classes="green")
    assert explained.classes == ["green"] and explained.picture().startswith(b"\x89PNG")
    assert main(["export", str(run.folder.path), "--to", "torch", "--out", "model.pt2"]) == 0


def test_options_of_one_class_an_image_are_refused() -> None:
    with pytest.raises(UsageError, match=r"mixup is 0\.2.*multilabel"):
        Multilabel(NAMES).objective(nn.Identity(), TrainConfig(mixup=0.2))
    with pytest.raises(UsageError, match="threshold"):
        Multilabel(NAMES, {"threshold": 1.5})


def test_predictions_are_labels_above_the_threshold() -> None:
    task = Multilabel(NAMES, {"threshold": 0.6})
    (row,) = task.predict(torch.tensor([[2.0, 0.1, 1.0]]), top=2)
    assert row["labels"] == ["cat", "eel"] and list(row["probabilities"]) == ["cat", "eel"]
    assert json.loads(json.dumps(row)) == row
