"""The page: complete without a network, prepared like files, and in a browser the same answers as in torch."""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import mereo
from browser import browser_page, find_browser
from mereo.data import load_size
from mereo.errors import MereoError, UsageError
from mereo.export import export_model
from mereo.export.page import runtime
from mereo.export.page import writing as page_writing
from mereo.export.page.writing import open_page, page_settings, write_page
from mereo.inference.predict import read_images
from mereo.inference.temperature import KEY, Calibration
from mereo.tasks.classification import Classification

silent = {"say": lambda line: None}


@pytest.fixture
def no_runtime(monkeypatch, tmp_path):
    """Neither a cache nor npm nor an installed copy."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.chdir(tmp_path)


def obtain():
    """The runtime, or a reason to skip."""
    try:
        return runtime.runtime_files()
    except MereoError as error:
        pytest.skip(str(error))


def photographs(folder, shapes):
    """Smooth colour images with sharp edges, by name."""
    folder.mkdir()
    paths = []
    for number, (mode, size, suffix) in enumerate(shapes):
        random = np.random.default_rng(number)
        small = Image.fromarray(random.integers(0, 256, (9, 7, 3), dtype=np.uint8))
        picture = small.resize(size, Image.Resampling.BICUBIC)
        picture.paste((250, 20, 40), (size[0] // 4, size[1] // 3, size[0] // 2, size[1] // 2))
        if mode == "RGBA":
            picture.putalpha(Image.fromarray((255 * random.integers(0, 2, (size[1], size[0]))).astype(np.uint8)))
        paths.append(folder / f"{number}.{suffix}")
        options = {}
        if mode == "turned":
            exif = Image.Exif()
            exif[0x0112] = 6
            options = {"exif": exif}
        (picture if mode in ("RGBA", "turned") else picture.convert(mode)).save(paths[-1], **options)
    return paths


SHAPES = [
    ("RGB", (100, 100), "png"), ("L", (64, 41), "png"), ("RGBA", (50, 90), "png"), ("turned", (80, 60), "jpg"),
    ("RGB", (7, 5), "png"), ("P", (33, 33), "gif"), ("1", (40, 24), "png"), ("L", (19, 300), "webp"),
]  # fmt: skip


def test_without_the_runtime_a_line_tells_what_to_do(no_runtime, make, tmp_path):
    with pytest.raises(MereoError, match=r"onnxruntime-web.*npm install"):
        export_model(make("mspcaps_tiny"), ["page"], tmp_path / "out", **silent)
    assert not (tmp_path / "out" / "model.html").exists()


def test_a_failing_npm_is_named(no_runtime, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    npm = tmp_path / "empty" / "npm"
    npm.write_text("#!/bin/sh\necho 'request to registry failed' >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'empty'}:/bin:/usr/bin")
    with pytest.raises(MereoError, match="request to registry failed"):
        runtime.runtime_files()


def test_an_installed_copy_is_used_if_its_hashes_are_right(no_runtime, tmp_path, monkeypatch):
    folder = tmp_path / "node_modules" / "onnxruntime-web" / "dist"
    folder.mkdir(parents=True)
    contents = {name: name.encode() for name in runtime.FILES}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    with pytest.raises(MereoError):
        runtime.runtime_files()
    right = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(runtime, "FILES", right)
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    assert runtime.runtime_files() == contents


@pytest.mark.slow
def test_the_page_names_no_address_and_escapes_class_names(make, tmp_path, monkeypatch):
    monkeypatch.setattr(page_writing, "runtime_files", lambda: {"one": b"first", "two": b"second"})
    model = make("mspcaps_tiny")
    model.class_names = ("</script><script>alert(1)</script>", *model.class_names[1:])
    path = tmp_path / "model.html"
    write_page(model, path, {"data": "<b>digits", "results": {"test": {"accuracy": 0.5}}})
    text = path.read_text()
    assert "<script>alert" not in text and "<b>digits" not in text and "50.00 %" in text
    assert not re.search(r"https?://", text)
    settings = json.loads(re.search(r'id="settings">(.*?)</script>', text)[1])
    assert settings["classes"][0] == model.class_names[0]
    images = torch.rand(2, *model.image_shape)
    torch.testing.assert_close(open_page(path)(images), model(images), rtol=0, atol=1e-4)


def test_a_network_that_chooses_no_class_is_refused(make, tmp_path):
    model = make("mspcaps_tiny")
    model.metadata = {"task": "reconstruction"}
    with pytest.raises(UsageError, match="to is page"):
        export_model(model, ["page"], tmp_path, **silent)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize(("channels", "crop_pct"), [(1, 1.0), (3, 0.875), (2, 1.0)])
def test_pixels_are_those_of_files_bit_for_bit(make, tmp_path, channels, crop_pct):
    model = make("mspcaps_tiny", in_chans=channels, img_size=(18, 14))
    model.pretrained_cfg["crop_pct"] = crop_pct
    shapes = [("RGB", (width, height), "png") for width, height in ((9, 60), (100, 31), (14, 18), (16, 21), (5, 3))]
    paths = photographs(tmp_path / "photos", shapes)
    given = []
    for path in paths:
        pixels = np.asarray(Image.open(path).convert("RGBA"))
        given.append({"pixels": pixels.flatten().tolist(), "height": len(pixels), "width": pixels.shape[1]})
    settings = page_settings(model)
    assert settings["load"] == list(load_size((18, 14), crop_pct))
    code = (
        f"{Path(runtime.__file__).with_name('prepare.js').read_text()}\n"
        f"const settings = {json.dumps(settings)};\n"
        f"const seen = {json.dumps(given)}.map((g) => Array.from(prepare(g.pixels, g.height, g.width, settings)));\n"
        "console.log(JSON.stringify(seen));\n"
    )
    (tmp_path / "code.js").write_text(code)
    done = subprocess.run(["node", tmp_path / "code.js"], capture_output=True, text=True, check=True)
    _, expected = read_images(paths, model)
    seen = torch.tensor(json.loads(done.stdout)).view(expected.shape)
    assert torch.equal(seen, (expected * 255).round().long())


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed")
@pytest.mark.parametrize(("name", "temperature"), [("capsnet", None), ("capsnet", 0.1), ("resnet20", None)])
def test_the_page_predicts_in_a_browser_what_predict_predicts(make, tmp_path, name, temperature):
    obtain()
    model = mereo.create_model("resnet20").eval() if name == "resnet20" else make(name)
    if name == "resnet20":
        with torch.no_grad():
            model.get_classifier().weight.mul_(3)
    if temperature is not None:
        model.metadata = {**model.metadata, KEY: Calibration(temperature, 10, 0.1, 0.05).to_dict()}
    export_model(model, ["page"], tmp_path, **silent)
    paths = photographs(tmp_path / "photos", SHAPES)
    _, images = read_images(paths, model)
    task = Classification()
    mean, std = (torch.tensor(model.pretrained_cfg[key]).view(1, -1, 1, 1) for key in ("mean", "std"))
    with torch.inference_mode():
        scores = model((images - mean) / std)
    calibrated = temperature is not None or model.score_kind == "logits"
    expected = (scores / (temperature or 1)).softmax(1) if calibrated else scores
    with browser_page() as page:
        page.open((tmp_path / "model.html").as_uri())
        page.wait("document.getElementById('status').textContent === 'Ready.'")
        for path, row, plain in zip(paths, expected, task.predict(scores), strict=True):
            page.choose_file("#file", path)
            page.wait(f"document.getElementById('status').textContent.startsWith({json.dumps(path.name)})")
            found = torch.tensor(list(page.run("latest").values()))
            assert (found - row).abs().max() < 1e-3, path.name
            shown = page.run("document.getElementById('class').textContent")
            assert shown == (model.class_names[int(plain["class"])] if model.class_names else plain["class"])
        (tmp_path / "broken.png").write_bytes(b"no image")
        page.choose_file("#file", tmp_path / "broken.png")
        page.wait("document.getElementById('status').classList.contains('wrong')")
        assert "broken.png" in page.run("document.getElementById('status').textContent")
        page.draw("#pad", [(0.5, 0.2), (0.5, 0.5), (0.5, 0.8)])
        page.wait("document.getElementById('status').textContent.startsWith('drawing')")
        page.key("Tab")
        assert page.run("document.activeElement.tagName") in ("BUTTON", "INPUT")
        assert page.problems == []
        assert [url for url in page.requests if not url.startswith(("file:", "blob:", "data:"))] == []
