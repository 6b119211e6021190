"""The experiment on attention to circles: its network, its losses, and as a person runs it, on a few digits."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from mereo.cli.main import main
from mereo.surgery import linearise
from papers.clear import clear
from papers.clear.flow_transformer import FlowTransformer, noised, sampled


def network() -> FlowTransformer:
    torch.manual_seed(0)
    model = FlowTransformer((1, 6, 5), 3, text_tokens=2, dim=8, heads=2, depth=2)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def test_images_on_the_way_to_noise() -> None:
    images, noise = torch.full((2, 1, 2, 2), 3.0), torch.full((2, 1, 2, 2), 7.0)
    x, target = noised(images, noise, torch.tensor([0.0, 0.25]))
    assert x[0].unique().tolist() == [3] and x[1].unique().tolist() == [4] and target.unique().tolist() == [4]


def test_the_network_sees_time_class_and_all_pixels() -> None:
    model, images, labels = network(), torch.randn(2, 1, 6, 5), torch.tensor([0, 2])
    at = torch.tensor([0.3, 0.6])
    plain = model(images, at, labels)
    assert plain.shape == images.shape
    assert not torch.allclose(model(images, at + 0.2, labels), plain)
    assert not torch.allclose(model(images, at, labels.flip(0)), plain)
    changed = images.clone()
    changed[:, :, 0, 0] += 1
    assert ((model(changed, at, labels) - plain).abs() > 0).all()
    assert sampled(model, images, labels, steps=2).isfinite().all()


def test_a_velocity_that_is_known_ends_in_the_image() -> None:
    class Known(torch.nn.Module):
        def forward(self, x: torch.Tensor, at: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return (x - 5) / at.view(-1, 1, 1, 1)

    torch.testing.assert_close(sampled(Known(), torch.randn(2, 1, 2, 2), torch.zeros(2)), torch.full((2, 1, 2, 2), 5.0))


def test_losses_of_a_student() -> None:
    teacher, images, labels = network(), torch.randn(4, 1, 6, 5), torch.tensor([0, 1, 2, 0])
    same = clear.losses(linearise(teacher, 9), teacher, images, labels)
    assert same["L_pred"] < 1e-10 and same["L_attn"] < 1e-10 and same["L_fm"] > 0
    cut = clear.losses(linearise(teacher, 2), teacher, images, labels)
    assert cut["L_pred"] > 1e-6 and cut["L_attn"] > 1e-6


@pytest.mark.long
def test_the_experiment_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clear, "SIZE", 8)
    monkeypatch.setattr(clear, "VARIANTS", {"2, blocks": {"radius": 2, "down_factor": 4}})
    few = ["--data", "digits", "--limit", "48", "--epochs", "2", "--images", "24", "--output", str(tmp_path)]
    assert main(["reproduce", "clear", *few]) == 0
    results = json.loads((tmp_path / "clear-digits" / "results.json").read_text())
    (rows,) = results["tables"].values()
    assert [row["radius"] for row in rows] == ["full", "2, blocks"]
    assert all(row["L_attn"] < row["L_attn before"] and row["pairs %"] < 50 for row in rows[1:])
    with Image.open(tmp_path / "clear-digits" / "clear.png") as image:
        assert min(image.size) > 200
