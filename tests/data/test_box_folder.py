"""Folders of images with boxes: the three formats are one data set, boxes follow images, and faults are counted."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from PIL import Image

from box_folders import BOXES, SIDE, write
from mereo.cli.main import main
from mereo.data import dataset_info, load_splits
from mereo.data.box_folder import read_box_layout
from mereo.data.contents import Contents
from mereo.data.layout_options import LayoutOptions
from mereo.data.trees import open_tree
from mereo.errors import UsageError
from mereo.tasks.base import task_with


def remarks(folder: Path, **options: object) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read_box_layout(Contents(open_tree(folder)), **options)  # type: ignore[arg-type]
    return [str(each.message).partition(": ")[2] for each in caught]


@pytest.mark.parametrize("form", ["voc", "coco", "yolo"])
def test_the_three_formats_are_the_same_data_set_of_the_task_detection(tmp_path: Path, form: str) -> None:
    info = dataset_info(write(tmp_path / "data", form))
    assert info.num_classes == 2 and info.splits == {"train": 2} and info.size == (SIDE, SIDE)
    task = task_with(info.fields)
    assert task is not None and task.name == "detection" and "4 objects of 2 classes on 2 images" in info.summary
    assert info.layout is not None and info.layout.names == ("cat", "dog")
    split = info.layout.splits["train"]
    for row, number in enumerate(BOXES):
        for place, (name, box) in enumerate(BOXES[number]):
            assert split.fields["boxes"][row, place].tolist() == pytest.approx(box, abs=1e-4)
            assert info.layout.names[int(split.fields["box_labels"][row, place])] == name


@pytest.mark.parametrize("stream", [False, True])
def test_boxes_follow_images_of_several_sizes_to_the_size_of_training(tmp_path: Path, stream: bool) -> None:
    data = write(tmp_path / "data", "voc")
    Image.new("RGB", (2 * SIDE, SIDE)).save(data / "JPEGImages/1.png")  # twice as wide: the middle half is kept
    for split, number in (("train", 0), ("test", 1)):
        (data / f"ImageSets/Main/{split}.txt").write_text(str(number))
    splits = load_splits(str(data), img_size=SIDE // 2, validation_fraction=0, stream=stream)
    rows = []
    for part in (splits.train, splits.test):
        assert part is not None
        boxes = part.batch(torch.arange(1)).boxes
        assert boxes is not None
        rows.append(boxes[0, boxes[0].any(1)].tolist())
    # The left quarter of the second image is cut off, and one of its boxes with it.
    assert rows == [[[1.0, 1.5, 11.0, 16.5], [10.0, 0.0, 20.0, 10.0]], [[5.0, 15.0, 6.5, 20.0]]]


def test_what_is_wrong_is_counted_by_its_kind(tmp_path: Path) -> None:
    data = write(tmp_path / "data", "coco")
    path = data / "annotations/instances_train2017.json"
    document = json.loads(path.read_text())
    assert remarks(data) == []
    document["images"] += [{"id": 7, "file_name": "lost.png"}]
    for box in ([5, 5, -3, 4], [90, 90, 5, 5], [30, 30, 20, 5]):
        document["annotations"].append({"image_id": 0, "category_id": 0, "bbox": box})
    path.write_text(json.dumps(document))
    for name in ("plain", "turned"):
        image, exif = Image.new("RGB", (SIDE, SIDE)), Image.Exif()
        exif[0x0112] = 6
        image.save(data / f"train2017/{name}.png", exif=exif)
    document["images"].append({"id": 8, "file_name": "turned.png"})
    path.write_text(json.dumps(document))
    assert sorted(remarks(data)) == [
        "annotations without an image, such as 'lost.png', left out: 1",
        "boxes outside of their images, left out: 1",
        "boxes partly outside of their images, cut: 1",
        "boxes that are inverted, empty or no numbers, left out: 1",
        "images that their EXIF tag turns, unlike their boxes, left out: 1",
        "images without an annotation, such as 'train2017/plain.png', left out: 1",
    ]


def test_images_whose_annotation_is_empty_are_of_the_background(tmp_path: Path) -> None:
    data = write(tmp_path / "data", "yolo")
    Image.new("RGB", (SIDE, SIDE)).save(data / "images/train/2.png")
    (data / "labels/train/2.txt").write_text("")
    (data / "labels/train/1.txt").write_text("1 0.1 0.2 0.5 0.2 0.5 0.6 0.1 0.6")  # a polygon
    layout = read_box_layout(Contents(open_tree(data)))
    assert "1 of them without objects" in layout.evidence
    fields = layout.splits["train"].fields
    assert (fields["box_labels"] >= 0).sum(1).tolist() == [2, 1, 0]
    assert fields["boxes"][1, 0].tolist() == pytest.approx([4, 8, 20, 24])


def test_two_formats_and_unknown_classes_are_refused(tmp_path: Path) -> None:
    data = write(tmp_path / "data", "coco")
    assert read_box_layout(Contents(open_tree(data)), ("eel", "dog", "cat")).names == ("eel", "dog", "cat")
    with pytest.raises(UsageError, match=r"'dog'.*cat"):
        read_box_layout(Contents(open_tree(data)), ("cat",))
    (data / "Annotations").mkdir()
    (data / "Annotations/0.xml").write_text("<annotation><object><bndbox/></object></annotation>")
    with pytest.raises(UsageError, match=r"Pascal VOC XML.*COCO JSON"):
        read_box_layout(Contents(open_tree(data)))
    with pytest.raises(UsageError, match="detection"):
        (tmp_path / "plain").mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / "plain/a.png")
        dataset_info(tmp_path / "plain", options=LayoutOptions(task="detection"))


@pytest.mark.long
def test_a_folder_is_trained_on_evaluated_predicted_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = write(tmp_path / "data", "voc")
    for number in range(2, 12):
        Image.new("RGB", (SIDE, SIDE)).save(data / f"JPEGImages/{number}.png")
        (data / f"Annotations/{number}.xml").write_text((data / f"Annotations/{number % 2}.xml").read_text())
    (data / "ImageSets/Main/train.txt").unlink()
    words = ["--data", str(data), "--epochs", "1", "--img-size", "32", "--batch-size", "4", "--name", "run"]
    assert main(["train", *words]) == 0
    assert "task detection" in capsys.readouterr().out
    assert main(["predict", "--weights", "runs/run", str(data / "JPEGImages"), "--out", "found"]) == 0
    document = json.loads(Path("found/detections.json").read_text())
    assert len(document["images"]) == 12 and [each["name"] for each in document["categories"]] == ["cat", "dog"]
    assert Path("found/predictions.png").is_file()
    assert main(["evaluate", "runs/run", "--data", str(data)]) == 0
    assert "ap" in capsys.readouterr().out.lower()
    assert main(["export", "runs/run", "--to", "onnx", "--out", "model.onnx"]) == 0
