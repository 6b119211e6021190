"""The experiment of test-time optimisation, briefly learned."""

import torch
from PIL import Image

from mereo.generative.pose_tree import free_numbers
from papers.common.settings import Settings
from papers.listing import EXPERIMENTS
from papers.probabilistic_capsules import probabilistic_capsules
from papers.probabilistic_capsules.probabilistic_capsules import NOISE, make_corners


def test_corners_are_objects_times_places() -> None:
    data = make_corners(300, torch.Generator().manual_seed(0), 0.3, 0.0)
    assert data.children[..., 2, :].unique(dim=0).shape[0] > 0 and (data.children[..., 2, :2] == 0).all()
    assert (data.labels[~data.mask] == 0).all() and data.mask.any(1).all()
    # The four corners of a square have one linear part, and the mean of their places is the object's.
    whole = (data.labels[:, :4] == 1).all(1)
    linear = data.children[whole, :4, :2, :2]
    assert (linear - linear.mean(1, keepdim=True)).std() < 1.1 * NOISE
    opposite = data.children[whole, 0, :2, 2] + data.children[whole, 2, :2, 2]
    others = data.children[whole, 1, :2, 2] + data.children[whole, 3, :2, 2]
    assert (opposite - others).std() < 2.2 * NOISE
    strays = data.mask & (data.labels == 0)
    assert 0.05 < strays.sum() / data.mask.sum() < 0.15 and free_numbers(data.children)[strays].std() > 2


def test_bounds_never_fall(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(probabilistic_capsules, "EPOCH", 10)
    monkeypatch.setattr(probabilistic_capsules, "OPTIMISED", (2, 5))
    found = EXPERIMENTS["probabilistic_capsules"].run(Settings(tmp_path, epochs=2, images=12, say=lambda line: None))
    assert len(found["tables"]) == 3
    for rows in found["tables"].values():
        assert [row["belief"] for row in rows] == ["encoder", "2 steps", "5 steps"]
        bounds = [row["bound"] for row in rows]
        assert bounds == sorted(bounds) and all(row["images with a lower bound"] == 0 for row in rows)
    with Image.open(tmp_path / "bounds.png") as picture:
        assert picture.size[0] > 300
