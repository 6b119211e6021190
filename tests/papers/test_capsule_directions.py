"""The experiment on directions of class capsules: singular values, covered pixels, controls, changes, and a run."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mereo import create_model
from mereo.cli.main import main
from mereo.core import Capsules
from papers.ar_capsnet import capsule_directions as experiment

D = torch.float64


def test_share_of_the_first_singular_value() -> None:
    line = torch.outer(torch.tensor([1.0, -2.0, 3.0]), torch.randn(5))
    assert experiment.leading_share(line).item() == pytest.approx(1, abs=1e-6)
    axes = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
    both = experiment.leading_share(torch.stack((axes, torch.zeros(3, 3))))
    torch.testing.assert_close(both, torch.tensor([0.5, 0.0], dtype=D))
    given = torch.randn(7, 4, dtype=D)
    values = torch.linalg.eigvalsh(given.T @ given).sqrt()
    torch.testing.assert_close(experiment.leading_share(given), values.max() / values.sum())


def test_share_of_the_pixels() -> None:
    images = torch.zeros(4, 1, 4, 5)
    images[0, 0, 2, 3] = -7
    images[1] = 0.5
    images[2, 0, :2] = 1
    torch.testing.assert_close(experiment.spread(images), torch.tensor([0.05, 1, 0.5, 0], dtype=D))


def test_others_are_of_the_class() -> None:
    labels = torch.tensor([0, 1, 0, 0, 1, 2])
    others = experiment.others_of_the_class(labels, 50, torch.Generator().manual_seed(0))
    for n, row in enumerate(others[:5]):
        assert set(row.tolist()) == {m for m in range(6) if labels[m] == labels[n]} - {n}
    assert others.shape == (6, 50)


def test_changes_of_images() -> None:
    side = experiment.SIDE
    images = torch.zeros(1, 1, side, side, dtype=torch.float32)
    images[..., 8:12, 6:9] = 1
    by_name = {name.split(",")[0]: change for name, change in experiment.CHANGES.items()}
    for change in by_name.values():
        torch.testing.assert_close(experiment.changed(images, change, 0.0), images)
    torch.testing.assert_close(experiment.changed(images, by_name["shift to the right"], 1.0), images.roll(2, 3))
    torch.testing.assert_close(experiment.changed(images, by_name["shift down"], -0.5), images.roll(-1, 2))
    larger = experiment.changed(images, by_name["scale"], 1.0).sum() / images.sum()
    assert larger.item() == pytest.approx(1.44, rel=0.05)
    turned = experiment.changed(images, by_name["rotation"], 1.0)
    places = torch.arange(side) - (side - 1) / 2
    x, y = ((image.sum((0, 1, dim)) * places).sum() / image.sum() for image, dim in ((turned, 2), (turned, 3)))
    assert math.hypot(x, y) == pytest.approx(2.5, rel=0.05) and abs(math.degrees(math.atan2(y, -x))) == pytest.approx(
        30, abs=2
    )


def test_a_capsule_that_moves_along_a_line() -> None:
    torch.manual_seed(0)
    model: Any = create_model("ar_capsnet_small", img_size=experiment.SIDE).eval()
    images, labels = torch.rand(12, 1, experiment.SIDE, experiment.SIDE), torch.arange(12) % 3
    direction = torch.randn(8)

    def capsules(given: torch.Tensor) -> Capsules:
        poses = given.mean((1, 2, 3))[:, None, None] * direction + torch.zeros(len(given), 10, 1)
        return Capsules(poses, poses.norm(dim=2))

    model.capsules = capsules
    for row in experiment.directions(model, images, labels).values():
        assert row["image"] == pytest.approx(100, abs=0.1) and row["class"] == pytest.approx(100, abs=0.1)


@torch.no_grad()
def test_moved_numbers() -> None:
    torch.manual_seed(0)
    model: Any = create_model("ar_capsnet_small", img_size=experiment.SIDE).eval()
    images, labels = torch.rand(3, 1, experiment.SIDE, experiment.SIDE), torch.tensor([4, 0, 2])
    means, first = experiment.moved_numbers(model, images, labels)
    capsules: Capsules = model.capsules(images)
    plain = model.reconstruct(capsules, labels)
    assert first.shape == (8, len(experiment.MOVES), 1, experiment.SIDE, experiment.SIDE)
    torch.testing.assert_close(first[:, 2], plain[:1].expand(8, -1, -1, -1))
    shares, sizes = [], []
    for number in range(8):
        pose = capsules.pose.clone()
        for n, label in enumerate(labels):
            pose[n, label, number] += 0.25
        difference = model.reconstruct(Capsules(pose, capsules.activation), labels) - plain
        shares.append(experiment.spread(difference))
        sizes += [(d.square().sum() / p.square().sum()).sqrt() for d, p in zip(difference, plain, strict=True)]
    expected = (torch.stack(sizes), torch.stack(shares), experiment.spread(plain))
    assert list(means.values()) == pytest.approx([100 * each.mean().item() for each in expected], rel=1e-5)


@pytest.mark.long
def test_the_experiment_runs(tmp_path: Path) -> None:
    few = ["--limit", "60", "--epochs", "1", "--batch-size", "30", "--images", "40", "--output", str(tmp_path)]
    assert main(["reproduce", "capsule_directions", *few]) == 0
    results = json.loads((tmp_path / "capsule_directions-digits" / "results.json").read_text())
    own, of_classes, moved = results["tables"].values()
    for table in (own, of_classes):
        assert len(table) == 6 and all(len(row) == 5 for row in table)
        assert all(100 / 16 < row[name] <= 100.001 for row in table for name in row if name != "change")
    assert [row["network"] for row in moved] == list(experiment.NETWORKS)
    assert all(row[key] >= 0 for row in moved for key in row if key != "network")
    with Image.open(tmp_path / "capsule_directions-digits" / "numbers.png") as image:
        assert min(image.size) > 200
