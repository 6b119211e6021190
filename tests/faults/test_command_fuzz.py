"""Words that are no command, and trainings that go astray; `tools/hostile` tries the options of every command."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mereo
from mereo.cli.main import COMMANDS, main
from mereo.models.weights import load_tensors
from mereo.training.trainer import Trainer

WORDS = [
    "", " ", "missing", "file", "folder", "./folder/", ".", "/dev/null", "/dev/full", "/proc/self/mem", "digits",
    "digitz", "é", "🤖", "\u202e", "\udcff", "a b", "a\nb", "\t", "%s%n", "$(touch ran)", "; touch ran", "--", "-", "=",
    "a=b", "{}", "[]", "None", "x" * 300, "photo.png", "*.png", "[", "**", "network.safetensors", "'", '"', "\\", "ran",
]  # fmt: skip


def check_written(folder: Path) -> None:
    """No NaN in anything that was written."""
    for path in folder.rglob("*"):
        if path.suffix == ".safetensors" and path.is_file():
            tensors, _ = load_tensors(path)
            assert all(t.isfinite().all() for t in tensors.values() if t.is_floating_point()), path
        elif path.suffix == ".json" and path.is_file():
            json.loads(path.read_text(), parse_constant=pytest.fail)


STRAY = st.one_of(st.sampled_from([*WORDS, "nan", "inf", "-1", "1e-9", "--help", "--version"]), st.text(max_size=8))


@given(words=st.lists(STRAY, max_size=3))
@settings(max_examples=100, derandomize=True, deadline=None, database=None)
def test_invalid_commands_are_refused(words):
    if words[:1] and words[0] in COMMANDS:
        return
    assert main(words) == (0 if words[:1] in (["--help"], ["--version"], ["-h"], ["help"]) else 2)


@pytest.mark.parametrize(("seconds", "step"), [("1e-9", 0), ("60", 1)], ids=["within an epoch", "at its end"])
def test_a_training_that_goes_astray_writes_no_weights(call, train_words, monkeypatch, seconds, step):
    optimise = Trainer.optimise

    def astray(self, epoch, number, order):
        found = optimise(self, epoch, number, order)
        if (epoch, number) == (1, step):
            # The loss before this step was finite, and that is what is looked at in every step.
            self.model.head.weight.data[0, 0] = math.inf
        return found

    monkeypatch.setattr(Trainer, "optimise", astray)
    words = ["--epochs", "3", "--checkpoint-seconds", seconds, "--name", "astray", "--no-tensorboard"]
    done = call(*train_words, *words).check()
    assert done.code == 1 and "head.weight holds values that are not finite" in done.err
    check_written(Path())
    assert load_tensors("runs/astray/state.safetensors")[1]["progress"]["epoch"] == 1
    assert mereo.load("runs/astray").metadata["epoch"] == 1
