"""The default network gives way to a plain one where it learns nothing, and only there."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import mereo
import mereo.training.report
from mereo.errors import UsageError
from mereo.training.config import TrainConfig
from mereo.training.defaults import Defaults
from mereo.training.learning import FEWEST_IMAGES, Learning, NotLearningError, checked_after, least_accuracy
from mereo.training.second_network import SECOND, WATCH, watched


def trainer(accuracies, *, epochs=10, images=FEWEST_IMAGES, classes=5):
    held = SimpleNamespace(strata=torch.arange(images) % classes, __len__=None)
    held = type("Held", (), {"strata": held.strata, "__len__": lambda self: images})()
    history = [{"val_accuracy": accuracy} for accuracy in accuracies]
    return SimpleNamespace(
        splits=SimpleNamespace(validation=held), config=SimpleNamespace(epochs=epochs), history=history, seconds=1.0,
        folder=None,
    )  # fmt: skip


def watch(accuracies, **about):
    run = trainer(accuracies, **about)
    Learning().on_epoch_end(run, len(accuracies) - 1, run.history[-1])


def test_a_training_is_ended_once_where_it_does_not_learn():
    with pytest.raises(NotLearningError) as stopped:
        watch([0.2, 0.2, 0.26])
    assert stopped.value.accuracy == pytest.approx(0.22) and stopped.value.largest == pytest.approx(0.2)
    watch([0.2, 0.2])  # too early
    watch([0.2] * 4)  # and later it goes on
    watch([0.2, 0.35, 0.45])


def test_few_images_and_the_last_epoch_decide_nothing():
    watch([0.2] * 3, images=FEWEST_IMAGES - 1)
    watch([0.2] * 3, epochs=3)
    run = trainer([None] * 3)
    Learning().on_epoch_end(run, 2, run.history[-1])


def test_the_bound_lies_between_guessing_and_no_error():
    for largest in (0.01, 0.5, 0.99):
        assert largest < least_accuracy(largest) < 1
    assert checked_after(10) == 3 and checked_after(60) == 12


@pytest.mark.parametrize("name", ["model", "model_args", "weights", "callbacks"])
def test_a_network_that_is_given_is_kept(name):
    chosen = Defaults(TrainConfig(), choice=object())  # type: ignore[arg-type]
    assert watched(chosen, {"data"}).callbacks == (WATCH,)
    assert watched(chosen, {"data", name}).callbacks == ()
    assert watched(Defaults(TrainConfig()), {"data"}).callbacks == ()


@pytest.fixture
def noise(tmp_path, monkeypatch):
    """Images that show nothing of their classes."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for split, count in (("train", 130), ("test", 5)):
        for name in "abcd":
            (tmp_path / "noise" / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "noise" / split / name / f"{number}.png")
    return tmp_path / "noise"


@pytest.mark.slow
def test_noise_ends_with_the_second_network_and_is_resumed_by_its_folder(noise, capsys):
    options = {"data": str(noise), "epochs": 4, "img_size": 16, "tensorboard": False}
    run = mereo.train(**options)
    shown = capsys.readouterr().out
    assert f"{SECOND} takes its place" in shown and f"chosen for {SECOND}" in shown
    assert run.folder.path.name == f"{SECOND}-noise"
    assert [path.name for path in run.folder.path.parent.iterdir()] == [run.folder.path.name]
    assert len(run.folder.history.read_text().splitlines()) == 5
    assert TrainConfig.from_yaml(run.folder.config).callbacks == ()
    with pytest.raises(UsageError, match=f"mereo train runs/{SECOND}-noise --resume"):
        mereo.train(**options, resume=True)


@pytest.mark.slow
def test_a_resumed_run_is_watched_as_an_uninterrupted_one(noise, capsys):
    stop = {"after": 2}

    class Stopping(mereo.training.report.Report):
        def epoch(self, row, *more):
            super().epoch(row, *more)
            if row["epoch"] == stop["after"]:
                raise KeyboardInterrupt

    options = {"data": str(noise), "epochs": 4, "img_size": 16, "tensorboard": False}
    with pytest.raises(KeyboardInterrupt):
        mereo.train(**options, report=Stopping())
    run = mereo.train(data=str(noise), resume=True)
    assert run.folder.path.name == f"{SECOND}-noise" and f"{SECOND} takes its place" in capsys.readouterr().out
