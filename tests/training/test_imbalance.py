"""Uneven classes are reported before a training starts, and the balanced accuracy then chooses the epoch."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mereo.inference.evaluate import Scores
from mereo.tasks import Classification
from mereo.training.config import TrainConfig
from mereo.training.evaluation import choosing_metric, is_better
from mereo.training.report import Report
from mereo.training.setup import (
    Setup,
    describe_contradictions,
    describe_imbalance,
    describe_setup,
    prepare,
    uneven_classes,
)
from mereo.training.trainer import train
from pictures import picture

Make = Callable[..., TrainConfig]


def birds(root: Path, **counts: int) -> Path:
    for split, divisor in (("train", 1), ("val", 3), ("test", 3)):
        for number, (name, count) in enumerate(counts.items()):
            folder = root / split / name
            folder.mkdir(parents=True)
            for index in range(max(count // divisor, 1)):
                picture(number * 1000 + index, (16, 16)).save(folder / f"{index}.png")
    return root


def setup(make: Make, folder: Path, **changes: object) -> Setup:
    return prepare(make(data=str(folder), limit=None, **changes))


def test_sizes_and_a_remedy_are_named(small_config: Make, tmp_path: Path) -> None:
    uneven = birds(tmp_path / "uneven", crow=40, owl=20, wren=4)
    line = describe_imbalance(setup(small_config, uneven))
    assert line is not None
    for fact in ("40 images of crow", "4 of wren", "--sampler balanced", "balanced accuracy chooses"):
        assert fact in line
    balanced = describe_imbalance(setup(small_config, uneven, sampler="balanced"))
    assert balanced is not None and "--sampler" not in balanced
    assert describe_imbalance(setup(small_config, birds(tmp_path / "even", crow=12, owl=9, wren=4))) is None


def test_streamed_images_are_counted_too(small_config: Make, tmp_path: Path) -> None:
    uneven = birds(tmp_path / "uneven", crow=20, owl=4)
    assert uneven_classes(setup(small_config, uneven, stream=True)) == (("crow", 20), ("owl", 4))


def scores(accuracy: float, balanced: float) -> Scores:
    return Scores(100, 1.0, {"accuracy": accuracy, "balanced_accuracy": balanced})


def test_the_balanced_accuracy_chooses_between_epochs() -> None:
    task = Classification(("crow", "wren"))
    always_crow, both = scores(0.95, 0.5), scores(0.9, 0.9)
    metric = choosing_metric(task, uneven=True)
    assert is_better(task, both, always_crow.to_dict(), metric)
    assert not is_better(task, always_crow, both.to_dict(), metric)
    assert is_better(task, always_crow, both.to_dict(), choosing_metric(task, uneven=False))
    # An epoch of an older checkpoint has no balanced accuracy.
    assert not is_better(task, both, {"accuracy": 0.95, "loss": 1.0}, metric)


def test_a_run_keeps_the_epoch_of_the_highest_balanced_accuracy(
    small_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mereo.training.trainer import Trainer

    values = iter([scores(0.9, 0.5), scores(0.8, 0.8), *[scores(0.5, 0.5)] * 3])
    monkeypatch.setattr(Trainer, "evaluate", lambda self, split, final=False: next(values))
    folder = birds(tmp_path / "uneven", crow=40, wren=4)
    result = train(small_config(data=str(folder), limit=None, epochs=2), Report(silent=True))
    assert result.results["best_epoch"] == 2


def test_the_line_of_an_epoch_and_the_history_show_what_chooses(
    small_config: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = train(small_config(data=str(birds(tmp_path / "uneven", crow=40, wren=4)), limit=None, epochs=1))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch 1/1  ")]
    assert re.search(r"val \d+\.\d\d %, balanced accuracy \d+\.\d\d % \(best\)", line), line
    assert "val_balanced_accuracy" in result.folder.history.read_text().splitlines()[0]
    even = train(small_config(data=str(birds(tmp_path / "even", crow=12, wren=9)), limit=None, epochs=1))
    assert "balanced" not in capsys.readouterr().out + even.folder.history.read_text()


def test_one_image_in_two_classes_is_said(small_config: Make, tmp_path: Path) -> None:
    apart = birds(tmp_path / "apart", crow=6, owl=6)
    assert describe_contradictions(setup(small_config, apart)) is None
    (apart / "train" / "owl" / "0.png").write_bytes((apart / "train" / "crow" / "3.png").read_bytes())
    line = describe_contradictions(setup(small_config, apart))
    assert line is not None and "1 training image is" in line and "crow" in line and "owl" in line


def test_a_line_break_in_the_name_of_a_class_breaks_no_line(small_config: Make, tmp_path: Path) -> None:
    named = birds(tmp_path / "named", **{"a\nb": 40, "owl": 4})
    assert all("\n" not in line for line in describe_setup(setup(small_config, named)))
