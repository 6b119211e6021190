"""A training of a given time, with a clock that the test moves."""

import csv
from types import SimpleNamespace
from typing import Any

import pytest

from mereo.errors import UsageError
from mereo.training import schedule
from mereo.training.config import TrainConfig
from mereo.training.schedule import Clock, learning_rate
from mereo.training.trainer import Trainer, train


class Time:
    """Seconds that pass with each step, each image that is evaluated and the reading of the data."""

    def __init__(self, step=0.5, evaluation=0.002, reading=1.0):
        self.now, self.step, self.evaluation, self.reading = 100.0, step, evaluation, reading
        self.rates = []


@pytest.fixture
def passing(monkeypatch):
    """Lets time pass as a `Time` says; a function of the number of steps may be its `step`."""
    time = Time()
    optimise, evaluate, fit = Trainer.optimise, Trainer.evaluate, Trainer.fit

    def stepping(self, *arguments, **options):
        result = optimise(self, *arguments, **options)
        time.rates.append(self.rate)
        time.now += time.step(len(time.rates)) if callable(time.step) else time.step
        return result

    def evaluating(self, split, **options):
        time.now += time.evaluation * len(split)
        return evaluate(self, split, **options)

    def fitting(self):
        time.now += time.reading
        fit(self)

    monkeypatch.setattr(schedule, "monotonic", lambda: time.now)
    monkeypatch.setattr(schedule, "process_time", lambda: time.now)
    monkeypatch.setattr(Trainer, "optimise", stepping)
    monkeypatch.setattr(Trainer, "evaluate", evaluating)
    monkeypatch.setattr(Trainer, "fit", fitting)
    return time


def rows(result):
    return list(csv.DictReader(result.folder.history.read_text().splitlines()))


STEPS = 3
"""Of an epoch: 96 images in batches of 32."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("step", "minutes"),
    [
        (0.5, 0.5),
        (0.06, 0.1),
        (lambda number: 0.4 if number < 12 else 1.2, 0.5),  # other programs start
        (lambda number: 1.6 if number < 8 else 0.2, 0.5),  # and end
        (40.0, 0.5),  # a step takes longer than the time
    ],
)
def test_the_time_is_kept_and_the_rate_follows_it(step, minutes, passing, small_config, silent):
    passing.step, began = step, passing.now
    passing.evaluation = 1e-5 if step == 0.06 else 0.002
    result = train(small_config(minutes=minutes, epochs=1000, lr=0.01), silent)
    taken = passing.now - began
    longest = step if isinstance(step, float) else 1.6
    assert taken <= 60 * minutes + longest + 1 and taken >= 0.9 * 60 * minutes - 1
    # Warm-up, then the rate falls with the time to nearly nothing, however many steps that takes.
    if len(passing.rates) > 3:
        highest = passing.rates.index(max(passing.rates))
        assert highest < 0.5 * len(passing.rates) and passing.rates[-1] < 0.1 * max(passing.rates)
        assert passing.rates[highest:] == sorted(passing.rates[highest:], reverse=True)
    assert len(rows(result)) == -(-len(passing.rates) // STEPS) < 1000
    assert float(rows(result)[-1]["lr"]) == passing.rates[-1]


def test_the_most_epochs_end_a_training_before_its_time_as_without_a_clock(passing, small_config, silent):
    result = train(small_config(minutes=60, epochs=2), silent)
    assert len(rows(result)) == 2 and passing.now < 110


@pytest.mark.long
def test_a_killed_training_goes_on_with_the_time_that_was_left(passing, small_config, silent, monkeypatch):
    passing.reading = 0.0
    config = small_config(minutes=0.5, epochs=1000, name="killed")
    finish, began = Trainer.finish_epoch, passing.now

    def killed(self, epoch, *rest):
        row = finish(self, epoch, *rest)
        if epoch == 7:
            raise KeyboardInterrupt
        return row

    monkeypatch.setattr(Trainer, "finish_epoch", killed)
    with pytest.raises(KeyboardInterrupt):
        train(config, silent)
    monkeypatch.setattr(Trainer, "finish_epoch", finish)
    spent, passing.now = passing.now - began, passing.now + 1e6
    again = passing.now
    killed_rates = list(passing.rates)
    result = train(config.replace(resume=True), silent)
    assert 27 <= spent + passing.now - again <= 31
    assert len(rows(result)) == -(-len(passing.rates) // STEPS) and passing.rates[len(killed_rates)] < max(killed_rates)
    # A finished one is evaluated again, and with more minutes it goes on.
    count = len(passing.rates)
    train(config.replace(resume=True), silent)
    assert len(passing.rates) == count
    train(config.replace(resume=True, minutes=0.75), silent)
    assert 1.3 * count < len(passing.rates) < 1.7 * count


@pytest.mark.long
@pytest.mark.parametrize("clock", [3, {}, {"elapsed": 1.0, "setup": 0.0, "reserve": "x"}, {"elapsed": -1.0}])
def test_a_broken_time_in_a_checkpoint_is_refused(clock, small_config, silent, monkeypatch):
    config = small_config(minutes=10, epochs=1, name="broken")
    monkeypatch.setattr(Clock, "state", lambda self: clock)
    train(config, silent)
    with pytest.raises(UsageError, match="inconsistent progress"):
        train(config.replace(resume=True), silent)


def test_without_minutes_there_is_no_clock():
    clock = Clock()
    assert clock.share is None and not clock.is_over and clock.epochs(3, 20) == 20


def test_time_for_the_end_is_kept_up_to_a_share_of_it(passing):
    clock = Clock(1.0)
    clock.start()
    passing.now += 30
    clock.keep(10.0)
    assert clock.reserve == 12 and clock.share == pytest.approx(30 / 48)
    clock.keep(100.0)
    assert clock.reserve == 30 and clock.is_over
    clock.keep(100.0, 0.25)
    assert clock.reserve == 15 and not clock.is_over


def test_more_time_is_kept_for_a_final_evaluation_that_takes_longer():
    kept = list[float]()
    for cost in (1.0, 2.5):
        run: Any = SimpleNamespace(
            splits=SimpleNamespace(validation=range(10), test=range(20)), config=TrainConfig(precision="fp32"),
            task=SimpleNamespace(final_cost=cost),
            clock=SimpleNamespace(keep=lambda seconds, most: kept.append(seconds)),
        )  # fmt: skip
        Trainer._keep_time(run, 0.1)
    # After the epoch 10 held-out images; at the end these, 20 test images with two sets of weights and for calibration.
    assert kept == pytest.approx([1 + 7, 1 + 2.5 * 7])


def test_the_rate_with_a_share_of_the_time():
    config = TrainConfig(lr=1.0, min_lr=0.0, warmup_epochs=1.0, warmup_start=0.0, epochs=100)
    assert learning_rate(config, 10, 10, 0.5) == pytest.approx(0.5) and learning_rate(config, 10, 10, 1.0) == 0
    # The warm-up ends with its steps or after a fifth of the time.
    assert learning_rate(config, 5, 10, 0.0) == pytest.approx(0.5, abs=0.01)
    assert learning_rate(config, 1, 10, 0.2) == learning_rate(config, 10, 10, 0.2) > 0.9
    # The most epochs end the schedule too.
    assert learning_rate(config, 1000, 10, 0.1) == 0


@pytest.mark.long
def test_a_run_that_began_without_a_clock_is_resumed_without_one(passing, small_config, silent, monkeypatch):
    """Files of earlier versions state a time and the number of epochs that was chosen for it."""
    config = small_config(epochs=4, name="old")
    whole = train(config.replace(name="whole"), silent)
    finish = Trainer.finish_epoch

    def killed(self, epoch, *rest):
        row = finish(self, epoch, *rest)
        if epoch == 1:
            raise KeyboardInterrupt
        return row

    monkeypatch.setattr(Trainer, "finish_epoch", killed)
    with pytest.raises(KeyboardInterrupt):
        train(config, silent)
    monkeypatch.setattr(Trainer, "finish_epoch", finish)
    passing.step = 1000.0
    again = train(config.replace(resume=True, minutes=0.1), silent)
    assert [row["train_loss"] for row in rows(again)] == [row["train_loss"] for row in rows(whole)]
