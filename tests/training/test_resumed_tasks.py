"""A training of any task that is stopped within an epoch and resumed gives weights and history of a whole one."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

from mereo.models.weights import load_tensors
from mereo.training.config import TrainConfig
from mereo.training.report import Report
from mereo.training.run_folder import RunFolder
from mereo.training.trainer import Trainer, train

BACKBONE = {"backbone_args": {"widths": [4, 6, 8], "blocks": 1}}
PLATEAU = {"schedule": "plateau", "plateau_patience": 0, "plateau_factor": 0.5, "lr": 0.5, "warmup_epochs": 0.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "detection": {
        "model": "detector_small", "data": "shape_boxes", "img_size": 32, "augment": ("flip",),
        "model_args": {**BACKBONE, "dim": 8, "tower_layers": 1},
    },
    "segmentation": {
        "model": "unet_small", "data": "shape_masks", "img_size": 16, "model_args": {"widths": [4, 6, 8]},
        "augment": ("flip",),
    },
    "embedding": {
        "model": "embedding_resnet20", "data": "digits", "img_size": 16, "model_args": BACKBONE,
        "augment": ("shift=2",),
    },
    "sequence": {
        "model": "skeleton_base", "data": "actions:noise=0.02,train=60,least=20,most=30",
        "augment": ("speed=0.8:1.25",),
        "model_args": {"widths": [2, 3], "frames": 20, "drop": 0.1}, "epochs": 5, **PLATEAU,
    },
}  # fmt: skip


class StoppedError(Exception):
    """Stands for a kill: it passes every handler of the engine."""


def results(folder: RunFolder) -> tuple[list[dict[str, torch.Tensor]], list[list[str]]]:
    """Weights, and the history without times."""
    rows = csv.DictReader(folder.history.read_text().splitlines())
    kept = [[value for name, value in row.items() if "second" not in name] for row in rows]
    return [load_tensors(path)[0] for path in (folder.last, folder.best)], kept


@pytest.mark.long
@pytest.mark.parametrize("task", SETTINGS)
def test_a_stopped_training_goes_on_bit_for_bit(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {
        "task": task, "limit": 32, "test_limit": 32, "batch_size": 8, "epochs": 2, "device": "cpu",
        "tensorboard": False, "output": str(tmp_path), "checkpoint_seconds": 1e-9, **SETTINGS[task],
    }  # fmt: skip

    def run(name: str, **more: Any) -> RunFolder:
        return train(TrainConfig().replace(name=name, **changes, **more), Report(silent=True), pictures=False).folder

    whole, calls, optimise = run("whole"), list[int](), Trainer.optimise

    def stopping(self: Trainer, epoch: int, step: int, order: torch.Tensor) -> Any:
        calls.append(step)
        if len(calls) == 4 * (changes["epochs"] - 1) + 3:  # within the last epoch
            raise StoppedError
        return optimise(self, epoch, step, order)

    with monkeypatch.context() as patch, pytest.raises(StoppedError):
        patch.setattr(Trainer, "optimise", stopping)
        run("stopped")
    (ours, history), (theirs, other) = results(whole), results(run("stopped", resume=True))
    assert history == other and len(history) == changes["epochs"]
    for one, again in zip(ours, theirs, strict=True):
        assert one.keys() == again.keys() and all(torch.equal(one[name], again[name]) for name in one)
    if task == "sequence":  # the rate fell at a plateau, so that it is resumed too
        assert len({row[1] for row in history}) > 1
