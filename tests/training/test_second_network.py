"""The default network gives way to a plain one where it learns too little, and only there."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import mereo
from mereo.api.training import _train
from mereo.errors import UsageError
from mereo.training.config import TrainConfig
from mereo.training.defaults import Defaults
from mereo.training.learning import FEWEST_IMAGES, Learning, NotLearningError, checked_after, least_accuracy
from mereo.training.recipes import apply_recipe
from mereo.training.report import Report
from mereo.training.run_folder import RunFolder
from mereo.training.second_network import SECOND, WATCH, second_choice, watched


def trainer(accuracies, *, epochs=10, images=FEWEST_IMAGES, classes=5):
    held = type("Held", (), {"strata": torch.arange(images) % classes, "__len__": lambda self: images})()
    history = [{"val_accuracy": accuracy} for accuracy in accuracies]
    return SimpleNamespace(
        splits=SimpleNamespace(validation=held), config=SimpleNamespace(epochs=epochs), history=history, seconds=1.0,
        folder=None,
    )  # fmt: skip


def watch(accuracies, *, given=None, **about):
    run, callback = trainer(accuracies, **about), Learning()
    callback.given = given
    callback.on_epoch_end(run, len(accuracies) - 1, run.history[-1])


def test_a_training_is_ended_once_where_it_does_not_learn():
    with pytest.raises(NotLearningError) as stopped:
        watch([0.2, 0.2, 0.26])
    assert stopped.value.accuracy == pytest.approx(0.22) and stopped.value.largest == pytest.approx(0.2)
    watch([0.2, 0.2])  # too early
    watch([0.2] * 4)  # and later it goes on
    watch([0.2, 0.35, 0.45])


def test_more_is_expected_where_another_network_can_take_its_place():
    slow = [0.2, 0.35, 0.45]
    watch(slow)
    with pytest.raises(NotLearningError):
        watch(slow, given={})
    watch([0.6, 0.65, 0.7], given={})


def test_few_images_and_the_last_epoch_decide_nothing():
    watch([0.2] * 3, images=FEWEST_IMAGES - 1)
    watch([0.2] * 3, epochs=3)
    run = trainer([None] * 3)
    Learning().on_epoch_end(run, 2, run.history[-1])


def test_the_bound_lies_between_guessing_and_no_error():
    for largest in (0.01, 0.5, 0.99):
        assert largest < least_accuracy(largest) < least_accuracy(largest, replaceable=True) < 1
    assert checked_after(10) == 3 and checked_after(60) == 12


@pytest.mark.parametrize("name", ["model", "model_args", "weights", "callbacks"])
def test_a_network_that_is_given_is_kept(name):
    chosen = Defaults(TrainConfig(), given={"data": "digits"})
    assert watched(chosen) == replace(chosen, config=TrainConfig(callbacks=(WATCH,)))
    given = replace(chosen, given={"data": "digits", name: None})
    assert watched(given) == replace(given, given=None)
    assert watched(Defaults(TrainConfig())) == Defaults(TrainConfig())


@pytest.mark.parametrize("words", [{"recipe": "capsnet_paper"}, {"config": "saved.yaml"}])
def test_a_recipe_or_a_file_with_a_time_names_its_network(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saved.yaml").write_text(TrainConfig(limit=64).to_yaml())
    seen = []
    monkeypatch.setattr("mereo.training.second_network.train", lambda plan, report: seen.append(plan))
    options = {name: value for name, value in words.items() if name != "config"}
    config = TrainConfig() if "config" in words else apply_recipe(words["recipe"])
    given = {*options, "minutes"}
    config = config.replace(minutes=0.1, **options)
    _train(config, dict.fromkeys(given), from_file="config" in words, report=Report(silent=True))
    assert seen[0].config.callbacks == () and seen[0].given is None


@pytest.mark.parametrize("state", [{"given": ["lr"]}, {"given": {"rate": 1}}, {"given": {"lr": "high"}},
                                   {"given": {"lr": -1.0}}, {"given": 3}, None, []])  # fmt: skip
def test_a_broken_state_is_refused(state, tmp_path):
    run = SimpleNamespace(folder=RunFolder(tmp_path))
    with pytest.raises(UsageError, match=r"state\.safetensors has no valid state of the callback learning"):
        Learning().restore(run, state)


def test_the_state_keeps_what_was_given(tmp_path):
    run = SimpleNamespace(folder=RunFolder(tmp_path), plan=SimpleNamespace(given={"lr": 0.1, "augment": ("flip",)}))
    first, again = Learning(), Learning()
    first.on_epoch_start(run, 0)
    again.restore(run, json.loads(json.dumps(first.state())))
    run.plan.given = None
    again.on_epoch_start(run, 1)
    assert again.state() == {"given": {"lr": 0.1, "augment": ["flip"]}}
    old = Learning()
    old.restore(run, {})
    assert old.state() == {"given": None}


def test_the_second_network_has_what_is_left_of_the_given_minutes_or_the_default_time(monkeypatch):
    seen = []
    monkeypatch.setattr("mereo.training.second_network.choose_defaults", lambda config, given: seen.append(given))
    first = TrainConfig(minutes=1.5, epochs=20)
    for given in ({"minutes": 1.5}, {}, {"minutes": 1.5, "epochs": 20}):
        second_choice(first, given, 30.0)
    assert seen[0]["minutes"] == 1.0 and "minutes" not in seen[1] and seen[2]["minutes"] == 1.5
    second_choice(first, {"minutes": 1.5}, 89.0)
    assert seen[3]["minutes"] == 0.5


def test_the_second_network_keeps_what_was_given_and_where_it_runs():
    first = TrainConfig(
        model="mspcaps_tiny", batch_size=32, lr=0.1, epochs=3, img_size=24, callbacks=(WATCH,), resume=True,
        device="cpu", output="elsewhere", name="mspcaps_tiny-digits", augment=("crop=2",), limit=64, warmup_epochs=0.5,
    )  # fmt: skip
    given = {"lr": 0.1, "epochs": 3, "img_size": 24, "limit": 64, "output": "runs", "augment": ["crop=2"]}
    second = second_choice(first, given, 1.0).config
    assert (second.model, second.callbacks, second.resume, second.name) == (SECOND, (), False, None)
    assert (second.lr, second.epochs, second.img_size, second.augment) == (0.1, 3, 24, ("crop=2",))
    assert (second.device, second.output) == ("cpu", "elsewhere")
    assert second.batch_size == 16, "chosen anew"


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
    assert f"{SECOND} is trained instead" in shown and f"chosen for {SECOND}" in shown
    assert run.folder.path.name == f"{SECOND}-noise"
    assert [path.name for path in run.folder.path.parent.iterdir()] == [run.folder.path.name]
    assert len(run.folder.history.read_text().splitlines()) == 5
    assert TrainConfig.from_yaml(run.folder.config).callbacks == ()
    with pytest.raises(UsageError, match=f"mereo train runs/{SECOND}-noise --resume"):
        mereo.train(**options, resume=True)


@pytest.mark.slow
def test_a_resumed_run_is_watched_as_an_uninterrupted_one(noise, capsys):
    stop = {"after": 2}

    class Stopping(Report):
        def epoch(self, row, *more):
            super().epoch(row, *more)
            if row["epoch"] == stop["after"]:
                raise KeyboardInterrupt

    options = {"data": str(noise), "epochs": 4, "img_size": 16, "lr": 0.004, "tensorboard": False}
    with pytest.raises(KeyboardInterrupt):
        mereo.train(**options, report=Stopping())
    run = mereo.train("runs/mspcaps_tiny-noise", resume=True)
    assert run.folder.path.name == f"{SECOND}-noise" and f"{SECOND} is trained instead" in capsys.readouterr().out
    config = TrainConfig.from_yaml(run.folder.config)
    assert (config.epochs, config.img_size, config.lr, config.tensorboard) == (4, 16, 0.004, False)
