"""Pairs of pictures through the whole pipeline: training, evaluation, prediction, pictures and export."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mereo import load
from mereo.cli.main import main
from mereo.inference.predict import read_images
from mereo.pictures import displayable
from norb_files import write_smallnorb

TINY = ["--model", "efficient_capsnet", "--img-size", "14", "--model-args", "stem=[[5,4,1],[3,16,2]]", "class_dim=6"]


def test_two_channels_are_shown_in_red_and_cyan() -> None:
    pair = torch.stack([torch.full((3, 4), 0.25), torch.ones(3, 4)])
    assert np.allclose(displayable(pair), [0.25, 1, 1])


@pytest.mark.long
def test_pairs_pass_through_every_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEREO_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write_smallnorb(tmp_path / "smallnorb", count=60, side=20)
    assert main(["train", "--data", "smallnorb:viewpoints=elevation", *TINY, "--epochs", "1", "--name", "run"]) in (
        None,
        0,
    )
    run = "runs/run"
    model = load(run)
    assert model.image_shape == (2, 14, 14) and model.metadata["data"] == "smallnorb:viewpoints=elevation"
    assert main(["evaluate", run, "--attack", "fgsm", "--corruptions", "--out", "evaluation"]) in (None, 0)
    assert (tmp_path / "evaluation" / "report.md").read_text()
    pixels = np.random.default_rng(0).integers(0, 256, (14, 28), dtype=np.uint8)
    Image.fromarray(pixels).save("pair.png")
    _, images = read_images([Path("pair.png")], model)
    assert np.array_equal((255 * images[0]).round().numpy(), [pixels[:, :14], pixels[:, 14:]])
    assert main(["predict", "pair.png", "--weights", run]) in (None, 0)
    assert main(["explain", "pair.png", "--weights", run, "--out", "explanation"]) in (None, 0)
    assert (tmp_path / "explanation" / "explanation.png").exists()
    assert main(["export", run, "--to", "torch", "--out", "exported"]) in (None, 0)
    assert (tmp_path / "exported" / "model.pt2").exists()
