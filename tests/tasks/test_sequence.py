"""The task of sequences: its loss, and runs that learn, predict, evaluate, explain and export."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mereo
from mereo.cli.main import main
from mereo.data import Batch, load_splits
from mereo.errors import UsageError
from mereo.explain.sequence_pictures import joint_saliency
from mereo.tasks import SequenceClasses
from mereo.training.config import TrainConfig

SMALL: dict[str, Any] = {"frames": 12, "joints": 5, "bodies": 1, "widths": (2, 3), "kernel": 3, "num_classes": 3}


ACTIONS = "actions:noise=0.02,train=60,least=20,most=30"


def test_the_loss_is_the_cross_entropy_of_the_probabilities() -> None:
    torch.manual_seed(0)
    model = mereo.create_model("skeleton_base", **{**SMALL, "l1": 0.0}).eval()
    task = SequenceClasses(("a", "b", "c"))
    batch = task.example(model, 4)
    with torch.no_grad():
        value, outputs = task.objective(model, TrainConfig())(batch)
    expected = -sum(outputs[row, label].item() for row, label in enumerate(batch.labels.tolist())) / 4
    assert value.item() == pytest.approx(expected, rel=1e-5)
    rows = task.predict(outputs)
    for row, cells, shares in zip(rows, task.cells(outputs), outputs.exp(), strict=True):
        assert row["class"] == cells[0] == "abc"[int(shares.argmax())]
        assert row["scores"][row["class"]] == pytest.approx(cells[1]) == pytest.approx(float(shares.max()))
    with pytest.raises(UsageError) as error:
        task.objective(model, TrainConfig(mixup=0.5))
    assert "mixup" in str(error.value)


def test_saliency_is_the_length_of_the_gradient_and_zero_for_frames_that_are_not_read() -> None:
    torch.manual_seed(0)
    arguments = {**SMALL, "kind": "parts", "parts": ((0, 1),), "centre": 0.0}
    model: Any = mereo.create_model("skeleton_base", **arguments).double().eval()
    sequences, lengths = torch.randn(2, 12, 15, dtype=torch.float64), torch.tensor([12, 12])
    found = joint_saliency(model, sequences, lengths, torch.tensor([1, 2]))
    assert found.shape == (2, 12, 1, 5) and not found[..., 2:].any() and found[..., :2].any()
    step = 1e-6
    moved = sequences.clone()
    slopes = []
    for axis in range(3):
        moved[0, 4, 3 + axis] += step
        slopes.append((model(moved)[0, 1] - model(sequences)[0, 1]).item() / step)
        moved[0, 4, 3 + axis] -= step
    assert found[0, 4, 0, 1].item() == pytest.approx(float(np.linalg.norm(slopes)), rel=1e-3)


def test_pictures_of_sequences_with_and_without_classes(tmp_path: Path) -> None:
    task = SequenceClasses(("a", "b", "c"))
    model = mereo.create_model("skeleton_base", **SMALL).eval()
    batch = task.example(model, 2)
    task.draw_samples(batch, tmp_path / "samples.png")
    task.draw(model, batch, batch, tmp_path / "known.png")
    unknown = Batch(sequences=torch.zeros_like(batch.sequences), lengths=batch.lengths)
    task.draw(model, unknown, unknown, tmp_path / "unknown.png")
    assert all((tmp_path / f"{name}.png").stat().st_size for name in ("samples", "known", "unknown"))


def test_augmentations_of_images_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--task", "sequence", "--augment", "flip", "--dry-run"]) == 2
    assert "flip" in capsys.readouterr().err
    assert main(["train", "--data", "digits", "--augment", "mirror", "--dry-run"]) == 2
    assert "mirror" in capsys.readouterr().err


@pytest.mark.long
def test_a_folder_is_recognised_learned_predicted_explained_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = load_splits(ACTIONS, length=30).train
    batch = whole.batch(torch.arange(60))
    assert batch.lengths is not None
    for number, (frames, length, label) in enumerate(
        zip(batch.sequences.numpy(), batch.lengths.tolist(), batch.labels.tolist(), strict=True)
    ):
        folder = Path("mine") / whole.class_names[label]
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{number}.npy", frames[:length].reshape(length, 15, 3))
    words = [
        "train", "--data", "mine", "--batch-size", "12", "--device", "cpu", "--no-tensorboard", "--epochs", "2",
        "--model-args", "widths=[2,3]", "frames=20", "--lr", "0.01",
    ]  # fmt: skip
    assert main([*words, "--name", "whole"]) == 0
    assert "a folder a class; 5 classes" in capsys.readouterr().out
    run = Path("runs/whole")
    assert mereo.load(run / "weights" / "best.safetensors").config["args"]["joints"] == 15
    capsys.readouterr()
    files = [str(path) for path in sorted(Path("mine").glob("*/*.npy"))[:4]]
    assert main(["predict", *files, "--weights", str(run), "--out", "made", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["predictions"]
    with Path("made/predictions.csv").open(encoding="utf-8-sig") as file:
        table = list(csv.DictReader(file))
    assert [row["class"] for row in table] == [row["class"] for row in rows] and len(rows) == 4
    assert [item.values["class"] for item in mereo.predict(run, np.load(files[0]))] == [rows[0]["class"]]
    assert main(["explain", files[0], "--weights", str(run), "--out", "why"]) == 0
    assert Path("made/predictions.png").stat().st_size and Path("why/sequences.png").stat().st_size
    assert main(["evaluate", str(run), "--out", "report"]) == 0
    report = json.loads(Path("report/report.json").read_text())["models"]
    (figures,) = report.values()
    assert figures["accuracy_low"] <= figures["accuracy"] <= figures["accuracy_high"]
    assert main(["evaluate", str(run), "--corruptions"]) == 2
    assert "sequences" in capsys.readouterr().err
    np.save("other.npy", np.ones((5, 4, 3)))
    assert main(["predict", "other.npy", "--weights", str(run)]) == 2
    assert "12 coordinates" in capsys.readouterr().err
