"""What a run has before it starts, and what it tells of it."""

from pathlib import Path

import pytest
from PIL import Image

from mereo.models import create_model
from mereo.training.report import Report
from mereo.training.setup import describe_augmentation, describe_images, describe_lone_senders, prepare
from mereo.training.trainer import train
from pictures import picture


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for place, count in (("train/cat", 10), ("train/dog", 10), ("val/cat", 2), ("val/dog", 3)):
        (tmp_path / "photos" / place).mkdir(parents=True)
        for number in range(count):
            picture(number).save(tmp_path / "photos" / place / f"{number}.png")
    return tmp_path / "photos"


def test_the_use_of_each_split_is_reported(small_config, photos):
    config = small_config(data=str(photos), limit=None)
    with pytest.warns(UserWarning, match="no test split"):
        line = describe_images(prepare(config))
    assert line.startswith("18 images to train on, 5 to choose the epoch by, 2 to test on (set aside")
    (photos / "val").rename(photos / "test")
    assert describe_images(prepare(config)) == "18 images to train on, 2 to choose the epoch by, 5 to test on"
    assert describe_images(prepare(config.replace(validation_fraction=0.0))) == "20 images to train on, 5 to test on"
    (photos / "val" / "cat").mkdir(parents=True)
    (photos / "val" / "dog").mkdir()
    picture(1).save(photos / "val/cat/1.png")
    assert describe_images(prepare(config)) == "20 images to train on, 1 to choose the epoch by, 5 to test on"


@pytest.mark.long
@pytest.mark.parametrize(("batch_size", "few"), [(32, True), (1, False)])
def test_a_run_of_few_steps_is_reported(small_config, capsys, batch_size, few):
    config = small_config(limit=60, batch_size=batch_size)
    train(config, Report())
    assert ("2 steps are too few" in capsys.readouterr().out) == few


def test_mirrored_digits_and_black_borders_on_paper_are_pointed_out(small_config, tmp_path):
    for name in ("3", "8"):
        for split in ("train", "val", "test"):
            (tmp_path / "paper" / split / name).mkdir(parents=True)
            for number in range(4):
                Image.new("L", (16, 16), 250 - number).save(tmp_path / "paper" / split / name / f"{number}.png")
    config = small_config(data=str(tmp_path / "paper"), limit=None, batch_size=4)
    flipped, black = describe_augmentation(prepare(config.replace(augment=("flip", "crop=2"))))
    assert "flip" in flipped and "crop" in black and "bright" in black
    (line,) = describe_augmentation(prepare(config))
    assert "neither mirrored" in line
    assert describe_augmentation(prepare(config.replace(augment=("zoom=0.5:1",)))) == []
    assert describe_augmentation(prepare(small_config(augment=("crop=2",)))) == []


@pytest.mark.parametrize(("arguments", "told"), [({}, True), ({"patch_size": 2}, False), ({"img_size": 29}, False)])
def test_couplings_without_a_choice_are_pointed_out(arguments, told):
    narrow = {"channels": (4, 4, 4), "img_size": 28, **arguments}
    assert (describe_lone_senders(create_model("mspcaps_tiny", **narrow)) is not None) == told
    assert describe_lone_senders(create_model("mspcaps_tiny", **narrow, coupling_over="receivers")) is None
