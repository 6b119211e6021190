"""Scanpaths: metrics by hand, and a short training whose paths are evaluated, predicted and drawn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mereo
from mereo.cli.main import main
from mereo.data import Batch, load_splits
from mereo.models.registry import get_model_entry
from mereo.tasks import Scanpaths
from mereo.tasks.scanpaths import Scanned, classes_of, fixations_of, targets_of
from mereo.training.config import TrainConfig

TINY = "shelves:rows=2,columns=2,train=12"


def test_pointers_are_classes_with_stop_last() -> None:
    pointers = torch.tensor([[2, 1, 0, -1], [3, 0, -1, -1]])
    assert fixations_of(pointers).tolist() == [[1, 0, -1], [2, -1, -1]]
    assert classes_of(pointers, 5).tolist() == [[1, 0, 5, -1], [2, 5, -1, -1]]


def test_metrics_of_two_scenes() -> None:
    batch = load_splits(TINY, length=1).test.batch(torch.arange(2))
    assert batch.regions is not None
    target = targets_of(batch.regions).tolist()
    paths = torch.tensor([[0, 1, 2, 3], [0, 0, target[1], -1]])
    batch = batch._replace(pointers=torch.nn.functional.pad(paths + 1, (0, 1)))
    shares = torch.full((2, 5, 5), 0.2)
    metrics = Scanpaths().metrics()
    metrics.update(Scanned(shares.log(), paths, paths.unsqueeze(1)), batch)
    found = metrics.compute()
    assert (found["delta"], found["ss"], found["ed"]) == (0, 1, 0) and found["sim"] == pytest.approx(0.2)
    assert found["human_length"] == 3.5 and found["human_correct"] == (1 + (target[0] == 3)) / 2
    assert found["multimatch_direction"] == pytest.approx(1)


def test_a_mean_step_counts_every_fixation_once() -> None:
    task, model = Scanpaths(), mereo.create_model("oat", **(get_model_entry("oat").tiny or {})).eval()
    batch = task.example(model, 2)
    assert batch.pointers is not None
    short = batch._replace(pointers=torch.tensor([[1, 0, -1, -1], [2, 3, 1, 0]]))
    objective = task.objective(model, TrainConfig())
    loss, outputs = objective(short)
    shares = outputs.log_shares
    places = ((0, 0, 0), (0, 1, 3), (1, 0, 1), (1, 1, 2), (1, 2, 0), (1, 3, 3))
    torch.testing.assert_close(loss, -sum(shares[place] for place in places) / 6)


@pytest.mark.long
def test_the_commands_train_evaluate_predict_and_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "--model", "oat_small", "--data", TINY, "--epochs", "1", "--output", "runs"]
    assert main([*words, "--model-args", "dim=36", "depth=1", "max_len=6", "--no-tensorboard"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert main(["evaluate", str(run), "--limit", "8"]) == 0 and "delta" in capsys.readouterr().out
    test: Any = load_splits(TINY, length=1).test
    regions = test.batch(torch.arange(2)).regions.numpy()
    np.savez("seen.npz", regions=regions)
    assert main(["predict", "seen.npz", "--weights", str(run), "--out", "answers"]) == 0
    assert {path.name for path in Path("answers").iterdir()} >= {"scanpaths.csv", "predictions.csv"}
    assert main(["explain", "seen.npz", "--weights", str(run), "--out", "couplings.png"]) == 0
    assert Path("couplings.png").stat().st_size
    found = mereo.predict(run, regions)
    assert found[0].values["fixations"][0] in range(4)
    regions[0, 0, -2:] = regions[0, 1, -2:]
    np.savez("wrong.npz", regions=regions)
    assert main(["predict", "wrong.npz", "--weights", str(run)]) == 2
    assert "regions of scene 0 have two objects in one place" in capsys.readouterr().err


def test_what_is_drawn(tmp_path: Path) -> None:
    task = Scanpaths()
    batch = load_splits("shelves:rows=2,columns=2,empty=1", length=1).test.batch(torch.arange(2))
    task.draw_samples(batch, tmp_path / "true.png")
    model = mereo.create_model("oat_small", dim=36, depth=1).eval()
    task.draw(model, Batch(regions=batch.regions), Batch(regions=batch.regions), tmp_path / "predicted.png")
    assert min(path.stat().st_size for path in tmp_path.iterdir()) > 2000
