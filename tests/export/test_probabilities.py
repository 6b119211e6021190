"""Probabilities are the same in the command, in Python, in the app, in exported files and of the estimator."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import mereo
from mereo.app import Networks
from mereo.cli.main import main
from mereo.export.onnx_file import PIXELS
from mereo.export.writing import export_model
from mereo.inference.temperature import KEY, Calibration, calibration_of
from mereo.models.pretrained import description_of, list_pretrained, pretrained_path


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(5).integers(0, 256, (16, 16), dtype=np.uint8)
    path = tmp_path / "photo.png"
    Image.fromarray(pixels).convert("RGB").save(path)
    return path


def shares_of(model: object, photo: Path) -> dict[str, float]:
    """What `mereo.predict` gives for all classes."""
    (prediction,) = mereo.predict(model, [photo], top=100)
    return prediction.values["probabilities"]


def test_command_and_app_agree(run: Path, photo: Path, tmp_path: Path, capsys) -> None:
    model = mereo.load(run)
    expected = shares_of(model, photo)
    assert sum(expected.values()) == pytest.approx(1)
    assert main(["predict", str(photo), "--weights", str(run), "--json", "--top", "100", "--device", "cpu"]) == 0
    (printed,) = json.loads(capsys.readouterr().out)["predictions"]
    assert printed["probabilities"] == pytest.approx(expected, abs=1e-6)
    shown, _, _ = Networks([run], torch.device("cpu"), None, None).answer(str(run), str(photo), "picture")
    assert shown == pytest.approx(expected, abs=1e-5)


def test_an_exported_folder_keeps_the_temperature_and_states_it(run: Path, photo: Path, tmp_path: Path) -> None:
    model = mereo.load(run)
    folder = mereo.save_pretrained(model, tmp_path / "folder")
    again = mereo.from_pretrained(folder)
    assert calibration_of(again) == calibration_of(model)
    assert shares_of(again, photo) == pytest.approx(shares_of(model, photo), abs=1e-9)
    assert shares_of(folder / "model.safetensors", photo) == pytest.approx(shares_of(model, photo), abs=1e-9)
    fitted = calibration_of(model)
    stated = float(re.search(r"softmax\(scores / ([0-9.e-]+)\)", (folder / "README.md").read_text())[1])
    assert fitted is not None and stated == pytest.approx(fitted.temperature, rel=1e-5)


def test_a_damaged_temperature_is_not_exported(make, tmp_path: Path) -> None:
    model = make("mspcaps_tiny")
    model.metadata = {**model.metadata, KEY: {"temperature": "hot"}}
    with pytest.raises(mereo.errors.UsageError, match="temperature"):
        mereo.save_pretrained(model, tmp_path / "folder")


@pytest.mark.long
def test_an_onnx_file_of_pixels_gives_the_probabilities(make, photo: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = make("mspcaps_tiny")
    model.metadata = {**model.metadata, KEY: Calibration(0.07, 10, 0.1, 0.05).to_dict()}
    (written,) = export_model(model, ["pixels"], tmp_path / "out", say=lambda line: None)
    session = onnxruntime.InferenceSession(str(written.path), providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == ["scores", "probabilities"]
    pixels = np.asarray(Image.open(photo))[None]
    (given,) = session.run(["probabilities"], {PIXELS: pixels})
    assert dict(zip(model.class_names, given[0].tolist(), strict=True)) == pytest.approx(
        shares_of(model, photo), abs=1e-5
    )
    notes = json.loads(session.get_modelmeta().custom_metadata_map["mereo"])
    assert notes[KEY]["temperature"] == 0.07


def test_the_estimator_gives_those_of_predict(photo: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    labels = np.arange(60) % 3
    images = np.clip(random.integers(0, 80, (60, 16, 16)) + 80 * labels[:, None, None], 0, 255).astype(np.uint8)
    arguments = {"channels": [4, 8, 8], "patch_size": 2}
    options = {"model_args": arguments, "img_size": 16, "epochs": 2, "batch_size": 16, "device": "cpu"}
    classifier = mereo.ImageClassifier(**options, validation_fraction=0.4).fit(images, labels)
    shares = classifier.predict_proba(images[:4])
    for number, row in enumerate(shares):
        Image.fromarray(images[number]).save(tmp_path / f"{number}.png")
        given = shares_of(classifier.model_, tmp_path / f"{number}.png")
        assert {str(name): p for name, p in zip(classifier.classes_, row, strict=True)} == pytest.approx(
            given, abs=1e-5
        )
    assert (classifier.classes_[shares.argmax(1)] == classifier.predict(images[:4])).all()
    plain = mereo.ImageClassifier(**options, validation_fraction=0).fit(images, labels)
    assert calibration_of(plain.model_) is None
    np.testing.assert_allclose(plain.predict_proba(images[:4]).sum(1), 1)


CALIBRATED = [name for name in list_pretrained() if KEY in description_of(name)]


@pytest.mark.parametrize("name", CALIBRATED)
def test_bundled_weights_give_the_probabilities_that_their_card_states(name: str, photo: Path) -> None:
    model = mereo.load(name)
    fitted = calibration_of(model)
    assert fitted is not None and fitted.test_images > 0 and fitted.test_ece_after < fitted.test_ece_before
    assert sum(shares_of(model, photo).values()) == pytest.approx(1, abs=2e-6 * model.num_classes)
    card = pretrained_path(name).with_suffix(".md").read_text()
    stated = float(re.search(r"softmax\(scores / ([0-9.e-]+)\)", card)[1])
    assert stated == pytest.approx(fitted.temperature, rel=1e-5)


def test_weights_of_the_readme_are_calibrated() -> None:
    assert {"mspcaps_tiny.mnist", "mspcaps_tiny.fashion_mnist", "mspcaps_tiny.cifar10"} <= set(CALIBRATED)
