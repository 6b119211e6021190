"""A file that takes pixels, and the model card, preprocess images as `mereo predict` does."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mereo.errors import UsageError
from mereo.export.card import preprocessing
from mereo.export.images import normalised
from mereo.export.onnx_file import PIXELS, open_onnx
from mereo.export.preprocessing import Preprocessing
from mereo.export.writing import export_model
from mereo.inference.predict import predict, read_images

SIZES = [(16, 16), (40, 30), (7, 90), (333, 251), (1, 5), (30, 20)]


def photo(path: Path, height: int, width: int, *, turned: bool = False, mode: str = "RGB") -> Path:
    random = np.random.default_rng(height * 1000 + width)
    image = Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8)).convert(mode)
    exif = Image.Exif()
    if turned:
        exif[0x0112] = 6
    image.save(path, exif=exif)
    return path


@pytest.mark.parametrize(
    "changes", [{}, {"in_chans": 3}, {"in_chans": 3, "img_size": (16, 24)}, {"crop": 0.7}], ids=str
)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_pixels_are_exactly_those_of_pillow(make, tmp_path, changes, size):
    crop = changes.get("crop", 1.0)
    model = make("mspcaps_tiny", **{name: value for name, value in changes.items() if name != "crop"})
    model.pretrained_cfg["crop_pct"] = crop
    path = photo(tmp_path / "photo.png", *size)
    expected = normalised(read_images([path], model)[1], model)
    pixels = torch.from_numpy(np.asarray(Image.open(path)).copy()).unsqueeze(0)
    torch.testing.assert_close(Preprocessing(model)(pixels), expected, rtol=0, atol=1e-5)


def test_a_network_of_two_views_has_none(make, tmp_path):
    with pytest.raises(UsageError, match="1 or 3 channels"):
        Preprocessing(make("mspcaps_tiny", in_chans=2))
    lines: list[str] = []
    with pytest.raises(UsageError, match="this one takes 2"):
        export_model(make("mspcaps_tiny", in_chans=2), ["hub", "pixels"], tmp_path / "out", say=lines.append)
    assert not lines and not (tmp_path / "out").exists(), "refused before any work"


@pytest.mark.long
def test_a_file_of_pixels_gives_the_scores_of_predict(make, tmp_path):
    pytest.importorskip("onnxruntime")
    model = make("mspcaps_tiny", in_chans=3, img_size=(16, 20))
    (written,) = export_model(model, ["pixels"], tmp_path, say=lambda line: None)
    assert written.path.name == "model.pixels.onnx" and written.difference < 1e-5
    score = open_onnx(written.path, PIXELS)
    for number, size in enumerate(SIZES):
        path = photo(tmp_path / f"{number}.png", *size)
        (prediction,) = predict(model, [path], top=model.num_classes)
        scores = score(torch.from_numpy(np.asarray(Image.open(path)).copy()).unsqueeze(0))
        ours = {name: scores[0, place].item() for place, name in enumerate(model.class_names)}
        assert ours == pytest.approx(prediction.values["scores"], abs=1e-5)
    both = torch.randint(0, 256, (2, 50, 31, 3), dtype=torch.uint8)
    torch.testing.assert_close(score(both), torch.cat([score(both[:1]), score(both[1:])]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("changes", [{"in_chans": 3, "img_size": (16, 24)}, {}, {"in_chans": 3, "crop": 0.8}], ids=str)
@pytest.mark.parametrize(
    ("turned", "mode"), [(False, "RGB"), (True, "RGB"), (False, "RGBA"), (False, "P"), (False, "L")]
)
def test_the_code_in_the_card_gives_the_input_of_the_network(make, tmp_path, changes, turned, mode):
    model = make("mspcaps_tiny", **{name: value for name, value in changes.items() if name != "crop"})
    model.pretrained_cfg["crop_pct"] = changes.get("crop", 1.0)
    path = photo(tmp_path / "photo.png", 60, 41, turned=turned, mode=mode)
    text = preprocessing(model)
    assert "EXIF" in text and "bilinear" in text
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names = {"path": path}
    exec(code, names)
    expected = normalised(read_images([path], model)[1], model)
    torch.testing.assert_close(torch.from_numpy(names["images"]), expected, rtol=0, atol=1e-5)
