"""The experiments on depth and on the class token: their network, and both as a person runs them, on a few digits."""

import importlib
import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from mereo.cli.main import main
from mereo.errors import UsageError
from mereo.layers.residual import FORMS
from papers.common.deep_networks import TOKENS, DeepTransformer
from papers.common.deep_training import Curve


def test_three_ways_of_the_class_token_have_the_same_size() -> None:
    images, counts = torch.rand(2, 3, 16, 16), set()
    for token in TOKENS:
        torch.manual_seed(0)
        model = DeepTransformer((3, 16, 16), 5, 4, dim=12, token=token, start=0.5)
        assert model(images).shape == (2, 5)
        counts.add(sum(p.numel() for p in model.parameters()))
        model(images).sum().backward()
        assert [n for n, p in model.named_parameters() if p.grad is None] == []
    assert len(counts) == 1
    with pytest.raises(UsageError, match="token is 'last'"):
        DeepTransformer((3, 16, 16), 5, 4, token="last")
    with pytest.raises(UsageError, match="over 2 layers"):
        DeepTransformer((3, 16, 16), 5, 2)


def test_late_tokens_do_not_change_earlier_layers() -> None:
    images = torch.rand(2, 3, 16, 16)
    for token in TOKENS:
        torch.manual_seed(0)
        model = DeepTransformer((3, 16, 16), 5, 4, dim=12, token=token, start=0.5)
        seen: list[torch.Tensor] = []
        model.attentions[1].register_forward_hook(lambda m, i, out, seen=seen: seen.append(out))
        model(images)
        with torch.no_grad():
            model.class_token.add_(1)
        model(images)
        assert torch.equal(*seen) == (token != "first")
        assert seen[0].shape[1] == 4 + (token == "first")


def test_a_curve_ends_in_the_mean_of_its_last_tenth() -> None:
    curve = Curve([float(x) for x in range(1, 41)], True, 50.0, 1.0)
    assert curve.end == 38.5 and curve.smooth(2)[:3] == [1.0, 1.5, 2.5]
    assert Curve([], False, 10.0, 1.0).end == float("inf")


@pytest.mark.parametrize(("name", "depth", "rows"), [("layer_scale", "DEPTHS", 4), ("class_attention", "DEPTH", 3)])
def test_the_experiments_run(name: str, depth: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module(f"papers.cait.{name}"), depth, 3 if depth == "DEPTH" else (3, 4))
    only = ["--variants", "pre_norm", "layer_scale"] if name == "layer_scale" else []
    few = ["--data", "digits", "--limit", "64", "--epochs", "1", "--batch-size", "16", "--images", "50", *only]
    assert main(["reproduce", name, *few, "--output", str(tmp_path)]) == 0
    found = json.loads((tmp_path / f"{name}-digits" / "results.json").read_text())
    ((title, table),) = found["tables"].items()
    assert title == "4 steps on 64 images of digits" and len(table) == rows
    assert all(0 < row["loss"] < 5 and 0 <= row["test %"] <= 100 for row in table)
    with Image.open(tmp_path / f"{name}-digits" / found["pictures"][0]) as image:
        assert min(image.size) > 200


def test_cifar_that_is_not_here_is_replaced_and_unknown_forms_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.import_module("papers.cait.layer_scale"), "DEPTHS", (3,))
    few = ["--data-root", str(tmp_path / "none"), "--limit", "20", "--epochs", "1", "--output", str(tmp_path)]
    assert main(["reproduce", "layer_scale", *few, "--variants", "rezero"]) == 0
    assert "CIFAR-10 is not on this machine" in capsys.readouterr().out
    assert json.loads((tmp_path / "layer_scale-cifar10" / "results.json").read_text())["data"] == "digits"
    assert main(["reproduce", "layer_scale", "--variants", "rezro", "--output", str(tmp_path)]) == 2
    assert "rezero" in capsys.readouterr().err and "rezero" in FORMS
