"""Trackers get the configuration and every epoch, and a missing package ends in one line."""

import importlib.util
import os
from typing import ClassVar

import pytest
from accelerate import tracking

from mereo.errors import MereoError, UsageError
from mereo.training import trackers
from mereo.training.trackers import check_trackers
from mereo.training.trainer import train


class Kept(tracking.GeneralTracker):
    """Keeps what it gets."""

    name, requires_logging_directory, main_process_only = "kept", False, True
    made: ClassVar[list["Kept"]] = []

    def __init__(self, run_name):
        super().__init__()
        self.run_name, self.rows, self.config, self.calls = run_name, [], {}, []
        Kept.made.append(self)

    @property
    def tracker(self):
        return self

    def start(self):
        self.calls.append("start")

    def store_init_configuration(self, values):
        self.config = values

    def log(self, values, step=None, **more):
        self.rows.append((step, values))

    def finish(self):
        self.calls.append("finish")


@pytest.fixture
def kept(monkeypatch):
    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "kept", Kept)
    monkeypatch.setattr(Kept, "made", [])
    return Kept


def test_a_tracker_gets_the_configuration_and_every_epoch(small_config, silent, kept):
    result = train(small_config(track=("kept", "kept")), silent)
    (tracker,) = kept.made
    assert tracker.calls == ["start", "finish"] and tracker.run_name == trackers.PROJECT
    assert tracker.config["model"] == result.results["model"] and tracker.config["epochs"] == 2
    assert [step for step, _ in tracker.rows] == [1, 2]
    assert all({"train_loss", "val_accuracy", "lr"} <= values.keys() for _, values in tracker.rows)


def test_an_unknown_tracker_and_a_missing_package_are_refused(monkeypatch):
    with pytest.raises(UsageError, match=r"wandbb.*wandb"):
        check_trackers(("wandbb",))
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"track is 'mlflow', which is not installed; pip install 'mereo\[mlflow\]'"):
        check_trackers(("mlflow",))


def test_a_registered_tracker_needs_no_package(kept):
    assert importlib.util.find_spec("kept") is None
    check_trackers(("kept",))


def test_a_tracker_that_fails_ends_the_run_with_its_name(small_config, silent, kept, monkeypatch):
    def fail(self):
        raise RuntimeError("no disk")

    monkeypatch.setattr(kept, "start", fail)
    with pytest.raises(MereoError, match=r"kept failed \(no disk\); leave it out of --track"):
        train(small_config(track=("kept",)), silent)


def test_nothing_leaves_the_machine_unless_the_environment_says_so(tmp_path, monkeypatch):
    from mereo.training.run_folder import RunFolder

    for name in ("WANDB_MODE", "MLFLOW_TRACKING_URI"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name in ("wandb", "mlflow"):
        trackers._arguments(name, RunFolder(tmp_path / "runs" / "one"))
    assert os.environ["WANDB_MODE"] == "offline"
    assert os.environ["MLFLOW_TRACKING_URI"] == f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}"
    monkeypatch.setenv("WANDB_MODE", "online")
    trackers._arguments("wandb", RunFolder(tmp_path))
    assert os.environ["WANDB_MODE"] == "online"
