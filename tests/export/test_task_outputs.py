"""Exported files of every task: `--out NAME.onnx` is written, and gives what `mereo predict` makes of the scores."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import mereo
from mereo.cli.main import main
from mereo.export.images import normalised
from mereo.inference.predict import read_images
from mereo.tasks.detection import DetectionOptions, detect

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")

TARGETS = {"mean": [50.0, -3.0], "std": [7.0, 0.5]}
NETWORKS: dict[str, tuple[str, dict[str, Any], tuple[str, ...], dict[str, Any], str]] = {
    "multilabel": ("resnet20", {"num_classes": 2, "img_size": 8}, ("cat", "dog"), {}, "probabilities"),
    "regression": ("resnet20", {"num_classes": 2, "img_size": 8}, ("age", "size"), {"targets": TARGETS}, "values"),
    "embedding": ("embedding_resnet20", {"num_classes": 3, "img_size": 8}, (), {}, "embeddings"),
    "segmentation": ("unet_small", {"num_classes": 2, "img_size": 16, "widths": (6, 8)}, ("no", "yes"), {}, "masks"),
    "detection": ("detector_small", {"num_classes": 2, "img_size": 32, "dim": 8}, ("cat", "dog"), {}, "detections"),
}


@pytest.fixture
def photo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).save("photo.png")
    return Path("photo.png")


def weights(task: str) -> Path:
    torch.manual_seed(0)
    name, arguments, names, known, _ = NETWORKS[task]
    path = Path(f"{task}.safetensors")
    mereo.save_weights(path, mereo.create_model(name, **arguments), class_names=names, task=task, **known)
    return path


def flat(values: Any) -> list[float]:
    """The numbers of a prediction of two images' worth of outputs, in order."""
    return np.asarray(values, dtype=np.float64).ravel().tolist()


@pytest.mark.long
@pytest.mark.parametrize("task", NETWORKS)
def test_a_file_gives_what_the_task_makes_of_the_scores(task: str, photo: Path) -> None:
    network, output = weights(task), NETWORKS[task][-1]
    assert main(["export", str(network), "--out", "found/x.onnx"]) == 0
    assert [path.name for path in Path("found").iterdir()] == ["x.onnx"]
    session = onnxruntime.InferenceSession("found/x.onnx", providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_outputs()] == ["scores", output]
    notes = json.loads(session.get_modelmeta().custom_metadata_map["mereo"])
    assert notes["class_names"] == list(NETWORKS[task][2]) and notes["task"] == task
    model = mereo.load(network).eval()
    images = normalised(read_images([photo], model)[1], model)
    (found,) = session.run([output], {"images": images.numpy()})
    (item,) = mereo.predict(network, photo)
    if task == "multilabel":
        assert flat(found) == pytest.approx([item.values["probabilities"][name] for name in ("cat", "dog")], abs=1e-4)
    elif task == "regression":
        assert flat(found) == pytest.approx([*item.values.values()], abs=1e-3) and notes["targets"] == TARGETS
    elif task == "embedding":
        assert flat(found) == pytest.approx(item.values["embedding"], abs=1e-4)
        assert np.linalg.norm(found) == pytest.approx(1, abs=1e-5)
    elif task == "detection":
        with torch.no_grad():
            expected = detect(model(images), DetectionOptions())
        assert found.shape == (1, 100, 6) and (expected[..., 5] >= 0).sum() > 1
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)
    else:
        assert found.shape == (1, 16, 16) and found.dtype == np.uint8
        shares = {name: float((found == place).mean()) for place, name in enumerate(("no", "yes"))}
        assert {name: share for name, share in shares.items() if share} == pytest.approx(item.values["shares"])


@pytest.mark.long
def test_a_file_of_pixels_gives_masks(photo: Path) -> None:
    assert main(["export", str(weights("segmentation")), "--to", "onnx", "--preprocess", "--out", "found"]) == 0
    session = onnxruntime.InferenceSession("found/model.pixels.onnx", providers=["CPUExecutionProvider"])
    pixels = np.asarray(Image.open(photo))[None]
    (masks,) = session.run(["masks"], {"pixels": pixels})
    (scores,) = session.run(["scores"], {"pixels": pixels})
    assert masks.shape == (1, 16, 16) and np.array_equal(masks, scores.argmax(1))
