"""Measurements on changed images, against the same counted by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch

from mereo import create_model
from mereo.data import ImageSet
from mereo.measure import robustness
from mereo.measure.corruptions import CORRUPTIONS, corrupt
from mereo.measure.robustness import Robustness, beside_plain, familiar_data, measure_robustness
from mereo.measure.trained_models import TrainedModel


def test_familiar_viewpoints_are_an_option_of_the_data() -> None:
    assert familiar_data("solids:viewpoints=azimuth") == "solids:viewpoints=azimuth,familiar=true"
    assert familiar_data("smallnorb:viewpoints=elevation") == "smallnorb:viewpoints=elevation,familiar=true"
    for data in ("solids", "digits", "no_such_set", "solids:viewpoints=azimuth,familiar=true", "solids:lightings=2"):
        assert familiar_data(data) is None


def test_measurements_are_those_counted_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = create_model("resnet20", widths=(4, 6, 8), blocks=1, num_classes=3, in_chans=2, img_size=12).eval()
    model.pretrained_cfg |= {"mean": (0.0, 0.0), "std": (1.0, 1.0)}
    random = np.random.default_rng(0)
    images = torch.from_numpy(random.integers(0, 256, (40, 2, 12, 12), dtype=np.uint8))
    labels = torch.arange(40) % 3
    loaded = []

    def load(sources, *, data, data_root, limit, device, seed):
        loaded.append(data)
        some = slice(0, 40) if "familiar" not in data else slice(0, 10)
        split = ImageSet(images[some], labels[some], ("a", "b", "c"))
        return [TrainedModel("one", sources[0], model, split, split.class_names, data)]

    monkeypatch.setattr(robustness, "load_trained_models", load)
    monkeypatch.setattr(robustness, "ATTACKED", 12)
    printed: list[str] = []

    def measure(data: str) -> Robustness:
        return measure_robustness({"net": tmp_path}, data, say=printed.append)["net"]

    measured = measure("solids:viewpoints=azimuth")
    assert sorted(loaded) == ["solids:viewpoints=azimuth", "solids:viewpoints=azimuth,familiar=true"] and printed

    def accuracy(pixels: torch.Tensor, truth: torch.Tensor) -> float:
        with torch.inference_mode():
            return (model(pixels).argmax(1) == truth).float().mean().item()

    floats = images / 255
    assert measured.accuracy == pytest.approx(accuracy(floats, labels))
    assert measured.familiar_viewpoints == pytest.approx(accuracy(floats[:10], labels[:10]))
    for name in ("rotation", "translation", "occlusion"):
        shares = [accuracy(corrupt(name, floats, s), labels) for s in CORRUPTIONS[name].severities if s]
        assert getattr(measured, name) == pytest.approx(sum(shares) / len(shares))
    assert measured.images == 40 and measured.attacked == 12
    assert 0 <= measured.apgd <= 1 and 0 <= measured.calibration_error <= 1
    assert set(measured.to_dict()) >= {"rotation", "apgd", "calibration_error"}
    for name in ("rotation", "translation", "occlusion"):
        assert [severity for severity, _ in measured.curves[name]] == list(CORRUPTIONS[name].severities)
        assert measured.curves[name][0][1] == measured.accuracy
    calls = len(loaded)
    assert measure("solids:viewpoints=azimuth").to_dict() == measured.to_dict() and len(loaded) == calls
    assert measure("solids").familiar_viewpoints is None and len(loaded) == calls + 1


def test_networks_are_compared_with_the_best_plain_one() -> None:
    def one(accuracy: float, error: float) -> Robustness:
        return Robustness(accuracy, None, accuracy, accuracy, accuracy, accuracy, error, None, None, 400, 100)

    measured = {"caps": one(0.95, 0.02), "weak": one(0.5, 0.2), "flat": one(0.9, 0.105), "bad": one(0.4, 0.3)}
    measured |= {"plain": one(0.89, 0.1), "worst": one(0.3, 0.5)}
    lines = beside_plain(measured, ["plain", "worst"])
    assert len(lines) == 6 and not any("viewpoints" in line for line in lines)
    for line in (lines[0], lines[-1]):
        assert "caps" in line and "for plain, the best" in line and "1 are clearly better" in line and "2 cl" in line
    assert "95.0 %" in lines[0] and "2.0 %" in lines[-1]
    # With a quarter of the images the difference to 0.95 is no longer clear.
    assert "0 are clearly better" in next(line for line in lines if line.startswith("APGD:"))
    assert beside_plain(measured, []) == []
