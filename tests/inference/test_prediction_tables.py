"""Predictions of every task as one table: `mereo predict --out NAME.csv`."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import mereo
from mereo.cli.main import main
from mereo.errors import UsageError
from mereo.inference.write_predictions import check_table, unique_names
from mereo.tasks import Reconstruction

TARGETS = {"mean": [50.0, -3.0], "std": [7.0, 0.5]}
NETWORKS: dict[str, tuple[str, dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    "multilabel": ("resnet20", {"num_classes": 2, "img_size": 8}, ("cat", "=dog"), {}),
    "regression": ("resnet20", {"num_classes": 2, "img_size": 8}, ("age", "height"), {"targets": TARGETS}),
    "embedding": ("embedding_resnet20", {"num_classes": 3, "img_size": 8}, (), {"task_options": {"dim": 3}}),
    "segmentation": ("unet_small", {"num_classes": 2, "img_size": 16, "widths": (6, 8)}, ("ground", "cat"), {}),
}
HEADERS = {
    "multilabel": ["image", "labels", "cat", "'=dog"],
    "regression": ["image", "predicted age", "predicted height"],
    "embedding": ["image", "0", "1", "2"],
    "segmentation": ["image", "mask", "share of ground", "share of cat"],
}


def weights(task: str) -> Path:
    """A file of random weights in the working folder, which names a task."""
    torch.manual_seed(0)
    name, arguments, names, known = NETWORKS[task]
    path = Path(f"{task}.safetensors")
    mereo.save_weights(path, mereo.create_model(name, **arguments), class_names=names, task=task, **known)
    return path


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three pictures of different sizes, two of them of one name, in the working folder."""
    monkeypatch.chdir(tmp_path)
    for place in ("photos/a.png", "photos/b.png", "photos/deep/a.jpg"):
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(len(place)).integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place)
    return Path("photos")


def rows_of(path: str) -> list[list[str]]:
    with Path(path).open(encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("task", NETWORKS)
def test_a_table_holds_what_python_gives(photos: Path, task: str, capsys: pytest.CaptureFixture[str]) -> None:
    network = weights(task)
    for _ in range(2):  # the table of an earlier prediction is replaced
        assert main(["predict", "photos", "--weights", str(network), "--out", "found.csv"]) == 0
    assert "written: found.csv" in capsys.readouterr().err
    header, *rows = rows_of("found.csv")
    assert header == HEADERS[task]
    assert [row[0] for row in rows] == ["photos/a.png", "photos/b.png", "photos/deep/a.jpg"]
    for row, item in zip(rows, mereo.predict(network, photos), strict=True):
        values = item.values
        if task == "multilabel":
            assert row[1] == ";".join(values["labels"])
            shares = [values["probabilities"][name] for name in ("cat", "=dog")]
            assert [float(cell) for cell in row[2:]] == pytest.approx(shares, abs=1e-5)
        elif task == "regression":
            assert [float(cell) for cell in row[1:]] == pytest.approx([*values.values()], rel=1e-5)
        elif task == "embedding":
            assert [float(cell) for cell in row[1:]] == pytest.approx(values["embedding"], abs=1e-5)
        else:
            shares = [values["shares"].get(name, 0) for name in ("ground", "cat")]
            assert [float(cell) for cell in row[2:]] == pytest.approx(shares, abs=1e-5)
            with Image.open(row[1]) as mask, Image.open(row[0]) as image:
                assert mask.size == image.size
    masks = {row[1] for row in rows} if task == "segmentation" else set()
    assert masks == {str(path) for path in Path("found").rglob("*") if path.is_file()}
    assert len(masks) == (3 if task == "segmentation" else 0)


def test_a_folder_has_the_same_table(photos: Path) -> None:
    network = weights("segmentation")
    mereo.predict(network, photos, out="found.csv")
    mereo.predict(network, photos, out="found2")
    assert [row[2:] for row in rows_of("found.csv")] == [row[2:] for row in rows_of("found2/predictions.csv")]
    assert rows_of("found2/predictions.csv")[1][1] == "found2/masks/a.png"


def test_images_in_memory_are_named_as_in_the_predictions(photos: Path) -> None:
    predictions = mereo.predict(weights("regression"), np.zeros((2, 8, 8, 3), np.uint8), out="found.csv")
    assert [row[0] for row in rows_of("found.csv")[1:]] == [str(item.path) for item in predictions]
    assert not any("/" in str(item.path) for item in predictions)


@pytest.mark.parametrize("task", NETWORKS)
def test_no_table_of_another_kind_is_replaced(photos: Path, task: str) -> None:
    truth = {"multilabel": "labels", "regression": "age,height", "embedding": "0", "segmentation": "mask"}
    Path("mine.csv").write_text(f"image,{truth[task]}\na.png,1\n")
    with pytest.raises(UsageError, match="a file that mereo did not write"):
        mereo.predict(weights(task), photos, out="mine.csv")
    assert Path("mine.csv").read_text().startswith(f"image,{truth[task]}\na.png")


def test_folders_of_masks_are_not_mixed_with_other_files(photos: Path) -> None:
    with pytest.raises(UsageError, match="the masks would go into photos"):
        mereo.predict(weights("segmentation"), photos, out="photos.csv")
    Path("taken").write_text("precious")
    with pytest.raises(UsageError, match="taken, which is a file"):
        mereo.predict(weights("segmentation"), photos, out="taken.csv")


def test_a_task_without_rows_is_refused(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("language.safetensors")
    model = mereo.create_model("tnl_tiny", dim=8, depth=1, num_heads=1, context=8)
    mereo.save_weights(path, model, task="language")
    assert main(["predict", "--weights", str(path), "--prompt", "a", "--out", "x.csv"]) == 2
    assert "out is x.csv, a table, and this network's predictions are drawn" in capsys.readouterr().err
    assert not Path("x.csv").exists()
    with pytest.raises(UsageError, match="task reconstruction do not fit a table"):
        check_table(Path("x.csv"), Reconstruction())


def test_names_differ_whatever_the_files_are_called() -> None:
    paths = [Path(name) for name in ("a.png", "b/a.png", "a-2.png", "A.jpg", "c/a-2.jpg")]
    names = unique_names(paths)
    assert names[:2] == ["a", "a-2"] and len({name.casefold() for name in names}) == 5
