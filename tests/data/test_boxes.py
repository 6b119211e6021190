"""Boxes in three formats: the same images and boxes give the same parts."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from box_folders import BOXES, SIDE, image, write
from mereo.cli.main import main
from mereo.data import dataset_info
from mereo.data.boxes import write_crops
from mereo.errors import MereoError, UsageError


@pytest.mark.parametrize("form", ["voc", "coco", "yolo"])
def test_parts_are_the_pixels_in_their_boxes(tmp_path: Path, form: str) -> None:
    counts = write_crops(write(tmp_path / "data", form), tmp_path / "parts")
    assert counts == {"cat": 2, "dog": 1}
    found = sorted((tmp_path / "parts/train").rglob("*.png"))
    expected = [
        (name, image(number).crop(box))
        for number, boxes in BOXES.items()
        for name, box in boxes
        if min(box[2] - box[0], box[3] - box[1]) >= 8
    ]
    pixels = {(path.parent.name, Image.open(path).tobytes()) for path in found}
    assert pixels == {(name, part.tobytes()) for name, part in expected}


def test_the_command_makes_a_folder_that_can_be_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "parts"
    assert main(["crops", str(write(tmp_path / "data", "voc")), "--out", str(target)]) == 0
    assert "cat" in capsys.readouterr().out
    assert dataset_info(target).splits == {"train": 3}
    assert main(["crops", str(tmp_path / "data"), "--out", str(target)]) == 2
    assert str(target) in capsys.readouterr().err


def test_damaged_images_are_named_and_left_out(tmp_path: Path) -> None:
    data = write(tmp_path / "data", "voc")
    damaged = data / "JPEGImages/0.png"
    damaged.write_bytes(damaged.read_bytes()[:2000])
    with pytest.warns(UserWarning, match=r"1 file in .*JPEGImages/0\.png"):
        assert write_crops(data, tmp_path / "parts") == {"cat": 1}
    (data / "JPEGImages/1.png").write_text("no image")
    with pytest.raises(MereoError, match="2 files in"):
        write_crops(data, tmp_path / "none")


def test_grey_of_sixteen_bits_keeps_its_contrast(tmp_path: Path) -> None:
    data = write(tmp_path / "data", "voc")
    pixels = np.linspace(0, 65535, SIDE * SIDE).reshape(SIDE, SIDE).astype(np.uint16)
    Image.fromarray(pixels).save(data / "JPEGImages/0.png")
    write_crops(data, tmp_path / "parts")
    part = np.asarray(Image.open(next((tmp_path / "parts").rglob("*0-0.png"))))
    assert part.max() < 230 and len(np.unique(part)) > 50


def test_what_cannot_be_cut_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(MereoError, match="plain"):
        write_crops(tmp_path / "plain", tmp_path / "parts")
    with pytest.raises(UsageError, match="plain"):
        (tmp_path / "plain/a.txt").write_text("")
        write_crops(write(tmp_path / "data", "voc"), tmp_path / "plain")
    (tmp_path / "data/Annotations/0.xml").write_text("<annotation><bndbox")
    with pytest.raises(MereoError, match=r"Annotations/0\.xml"):
        write_crops(tmp_path / "data", tmp_path / "parts")
