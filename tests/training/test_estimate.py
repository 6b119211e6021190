"""The figures of a dry run, against counts by hand."""

from dataclasses import replace

import pytest
from PIL import Image

from mereo.data import DatasetInfo
from mereo.errors import UsageError
from mereo.models import create_model, save_weights
from mereo.training import unreadable
from mereo.training.config import TrainConfig
from mereo.training.estimate import estimate
from mereo.training.plan import training_images
from mereo.training.show_estimate import announce, print_estimate, warn_of_memory
from mereo.training.trial_step import TrialStep


def small(**changes):
    return TrainConfig(model="capsnet", data="digits", device="cpu").replace(
        **{"model_args": {"conv_channels": 8, "primary_types": 2, "decoder": False}, **changes}
    )


def test_parameters_and_flops_are_those_of_the_layers():
    found = estimate(small(), measure=False)
    senders = 2 * 6 * 6
    assert found.parameters == 8 * 81 + 8 + 16 * 8 * 81 + 16 + senders * 10 * 8 * 16
    convolutions = 8 * 81 * 20 * 20 + 16 * 8 * 81 * 6 * 6
    votes, passes = senders * 10 * 8 * 16, 5 * senders * 10 * 16
    assert found.flops == pytest.approx(2 * (convolutions + votes + passes), rel=0.02)


def test_memory_grows_with_the_batch_and_shrinks_with_its_parts():
    one, two = (estimate(small(batch_size=b), measure=False).memory for b in (64, 128))
    parts = estimate(small(batch_size=128, accumulate=2), measure=False).memory
    assert two > one
    assert parts == one


def test_time_is_measured_only_when_asked_for():
    assert estimate(small(), measure=False).epoch_seconds is None
    found = estimate(small(batch_size=16))
    assert found.epoch_seconds is not None and found.epoch_seconds > 0


def test_a_step_that_will_not_fit_is_warned_of(capsys):
    found = estimate(small(batch_size=2), measure=False)
    warn_of_memory(replace(found, available=found.memory))
    assert capsys.readouterr().out == ""
    warn_of_memory(replace(found, available=found.memory - 1))
    assert "smaller --batch-size" in capsys.readouterr().out


def test_a_batch_is_never_more_than_there_are_images():
    found = estimate(small(batch_size=2**62, limit=100), measure=False)
    assert found.batch_size == 100
    assert found.memory == estimate(small(batch_size=100, limit=100), measure=False).memory


@pytest.mark.parametrize(
    ("splits", "changes", "count"),
    [
        ({"train": 100, "test": 20}, {}, 90),
        ({"train": 100, "validation": 20, "test": 20}, {}, 100),
        ({"train": 100, "validation": 20}, {}, 90),
        ({"train": 100}, {}, 72),
        ({"train": 100, "test": 20}, {"validation_fraction": 0.0}, 100),
        ({"train": 100, "test": 20}, {"limit": 30}, 30),
    ],
)
def test_images_are_counted_as_the_run_will_split_them(splits, changes, count):
    info = DatasetInfo("photos", "", "", 2, 3, None, splits)
    assert training_images(small(**changes), info) == count


def test_files_that_cannot_be_read_are_named_and_not_counted(tmp_path, monkeypatch):
    for place, count in (("train/a", 5), ("train/b", 5), ("val/a", 2), ("val/b", 2), ("test/a", 1), ("test/b", 1)):
        (tmp_path / place).mkdir(parents=True)
        for index in range(count):
            Image.new("L", (28, 28), 9 * index).save(tmp_path / place / f"{index}.png")
    (tmp_path / "train" / "a" / "notes.png").write_text("no image")
    config = small(data=str(tmp_path), batch_size=2)
    with pytest.warns(UserWarning, match=r"notes\.png \(not an image\)"):
        assert estimate(config).images == 10
    monkeypatch.setattr(unreadable, "SECONDS", 0.0)
    assert estimate(config).images == 11, "no time to look"


def test_the_figures_are_printed_before_the_timing(monkeypatch, capsys):
    def stop(*args: object) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(TrialStep, "image_seconds", stop)
    with pytest.raises(KeyboardInterrupt):
        print_estimate(small())
    out = capsys.readouterr().out
    assert all(word in out for word in ("parameters", "FLOPs", "memory")) and out.endswith("timing a step ...\n")


def test_weights_that_do_not_fit_are_refused_before_the_timing(tmp_path, capsys):
    save_weights(tmp_path / "other.safetensors", create_model("resnet20", widths=(4, 6, 8), blocks=1))
    with pytest.raises(UsageError, match="resnet20"):
        announce(small(weights=str(tmp_path / "other.safetensors"), epochs=100_000))
    assert "timing" not in capsys.readouterr().out


def test_wrong_augmentation_does_not_pass_a_dry_run(capsys):
    with pytest.raises(UsageError, match="did you mean 'rotate'"):
        print_estimate(small(augment=["rotat=15"]))
    assert capsys.readouterr().out == ""
