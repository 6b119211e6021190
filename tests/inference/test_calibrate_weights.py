"""Images that calibrate bundled weights: validation images of their training, or half of the test images."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import calibrate_weights
from mereo.data import Images, ImageSet


def images(count: int, first: int = 0) -> Images:
    labels = torch.arange(first, first + count)
    return ImageSet(torch.zeros(count, 1, 2, 2, dtype=torch.uint8), labels, tuple(map(str, range(200))))


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for weights trained on 8 images, of data with 10 training images and 6 test images."""

    def load_split(data: str, name: str, *, validation_fraction: float, seed: int, **how: Any) -> Images:
        held = round(10 * validation_fraction)
        assert data == "pets" and seed == 3 and not how["download"]
        return {"train": images(10 - held), "validation": images(held, 10 - held), "test": images(6, 100)}[name]

    monkeypatch.setattr(calibrate_weights, "load_split", load_split)
    metadata = {"data": "pets", "results": {"chosen_on": "validation", "train_images": 8}}
    return SimpleNamespace(metadata=metadata, image_shape=(1, 2, 2), pretrained_cfg={"crop_pct": 1.0})


def test_weights_chosen_on_validation_images_are_calibrated_on_these(model: Any) -> None:
    fitting, measuring, words = calibrate_weights.images_of(model, None, 0.2, 3)
    assert fitting.labels.tolist() == [8, 9] and measuring.labels.tolist() == list(range(100, 106))
    assert words == "validation images"
    with pytest.raises(SystemExit, match="weights were trained on 8"):
        calibrate_weights.images_of(model, None, 0.3, 3)
    with pytest.raises(SystemExit, match="chosen on: validation"):
        calibrate_weights.images_of(model, None, None, 3)


def test_weights_trained_on_all_images_are_calibrated_on_half_of_the_test_images(model: Any) -> None:
    model.metadata["results"] = {"chosen_on": "last epoch", "train_images": 10}
    fitting, measuring, words = calibrate_weights.images_of(model, None, None, 3)
    assert fitting.labels.tolist() == [100, 102, 104] and measuring.labels.tolist() == [101, 103, 105]
    assert "test images" in words
    with pytest.raises(SystemExit, match="chosen on: last epoch"):
        calibrate_weights.images_of(model, None, 0.2, 3)
