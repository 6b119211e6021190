"""Arguments that add parameters to a network, in a dry run, a training, a comparison and an export."""

import json
from pathlib import Path

import pytest

from mereo.cli.main import main

SMALL = ["img_size=17", "conv_channels=2", "primary_types=1"]
TRAIN = [
    "--data", "digits", "--limit", "32", "--batch-size", "16", "--epochs", "1", "--device", "cpu",
    "--warmup-epochs", "0",
]  # fmt: skip
ADDED = {
    "learned_prior": ["learned_prior=true"],
    "capsule_bias": ["capsule_bias=true"],
    "middle_capsules": ["middle_capsules=3", "learned_prior=true"],
    "all": ["learned_prior=true", "capsule_bias=true", "leaky=true", "init=official", "decoder=false"],
}


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def go(*words: str) -> str:
        code = main(list(words))
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return printed.out

    return go


@pytest.mark.parametrize(
    "added", [name if name == "all" else pytest.param(name, marks=pytest.mark.long) for name in ADDED]
)
def test_added_parameters_go_every_way(call, added):
    arguments = [*SMALL, *ADDED[added]]
    train = ["train", "--model", "capsnet", *TRAIN, "--no-tensorboard", "--name", "run", "--model-args", *arguments]
    assert "FLOPs" in call(*train, "--dry-run")
    call(*train)
    assert "is already finished" in call(*train, "--resume")
    call("export", "runs/run", "--to", "hub", "--out", "net", "--limit", "4")
    assert "| FLOPs of one image | 0 " not in Path("net/README.md").read_text()
    assert (
        json.loads(call("compare", f"capsnet:{','.join(arguments)}", *TRAIN, "--plain", "none", "--json"))[0]["macs"]
        > 0
    )
