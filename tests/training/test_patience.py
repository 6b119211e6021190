"""Early stopping: after `patience` epochs without a better one, also over a resumed run."""

import csv

import pytest

from mereo.errors import UsageError
from mereo.training.trainer import Trainer, train


@pytest.fixture
def _never_better(monkeypatch):
    """Only the first epoch is better than those before it."""
    monkeypatch.setattr("mereo.training.trainer.is_better", lambda task, scores, best, by=None: best is None)


def epochs_of(result):
    return len(list(csv.DictReader(result.folder.history.read_text().splitlines())))


@pytest.mark.usefixtures("_never_better")
def test_a_stopped_run_that_is_resumed_is_reported_as_finished(small_config, silent, capsys):
    train(small_config(epochs=9, patience=1), silent)
    train(small_config(epochs=9, patience=1, resume=True))
    out = capsys.readouterr().out
    assert "training is already finished, after epoch 2 of 9" in out and "resuming" not in out
    assert "no better epoch than 1 in 1 epoch\n" in out


@pytest.mark.long
@pytest.mark.usefixtures("_never_better")
def test_a_run_without_a_better_epoch_stops(small_config, silent):
    result = train(small_config(epochs=9, patience=2), silent)
    assert epochs_of(result) == 3 and result.results["best_epoch"] == 1
    again = train(small_config(epochs=9, patience=2, resume=True), silent)
    assert epochs_of(again) == 3, "a stopped run that is resumed is finished"


@pytest.mark.usefixtures("_never_better")
def test_a_killed_run_stops_where_the_whole_one_does(small_config, silent, monkeypatch):
    config = small_config(epochs=9, patience=2, name="killed")
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
    assert epochs_of(train(config.replace(resume=True), silent)) == 3


def test_patience_needs_held_out_images(small_config, silent):
    with pytest.raises(UsageError, match="patience is 2"):
        train(small_config(patience=2, validation_fraction=0.0), silent)
    with pytest.raises(UsageError, match="patience is 0"):
        train(small_config(patience=0), silent)
