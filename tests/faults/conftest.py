"""A command line to call, a small network to break, and a training small enough to be repeated."""

import contextlib
import io
import json
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import mereo
from mereo.cli.main import main

TRAIN = [
    "train", "--data", "digits", "--limit", "64", "--batch-size", "32", "--device", "cpu", "--img-size", "16",
    "--model-args", "channels=[4,8,8]", "patch_size=2",
]  # fmt: skip
"""Words of a training of about a second."""


class Done(NamedTuple):
    """What one command left: its exit code, and what it printed."""

    code: int
    out: str
    err: str

    def check(self, what: object = None) -> "Done":
        """Fail unless it ended as a command must, whatever it was asked."""
        report = f"{what}\n{self.out}\n{self.err}"
        assert self.code in (0, 1, 2), report
        assert "Traceback" not in self.out + self.err, report
        if self.code:
            *_, last = self.err.rstrip("\n").split("\n")
            assert last.startswith("mereo: error: ") and 20 < len(last) < 3000 and "-----" not in last, report
        return self

    def document(self) -> object:
        """The JSON it printed; a number that is not finite is an error."""
        return json.loads(self.out, parse_constant=not_a_number)


def not_a_number(text: str) -> None:
    raise AssertionError(f"{text} is no number")


def call_main(*words: object) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return Done(code, out.getvalue(), err.getvalue())


@pytest.fixture
def call():
    """call("predict", ...) runs one command in this process."""
    return call_main


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("MEREO_DATA", raising=False)


@pytest.fixture
def network():
    """A small network with random weights, ready to be saved."""
    torch.manual_seed(0)
    model = mereo.create_model("mspcaps_tiny", channels=(4, 8, 8), in_chans=1, img_size=16, patch_size=2)
    return model.eval()


@pytest.fixture
def weights(network):
    """The file of that network."""
    path = Path("network.safetensors")
    mereo.save_weights(path, network, class_names=tuple("0123456789"), data="digits")
    return path


@pytest.fixture
def train_words():
    return TRAIN
