"""Which data an evaluation reads when none is given."""

from pathlib import Path

import pytest
import torch

import mereo
from mereo.data import ImageSet
from mereo.errors import UsageError
from mereo.inference.evaluate import evaluate
from mereo.measure.trained_models import choose_data, match_names
from mereo.tasks import get_task
from mereo.training.config import TrainConfig


def stated(data):
    model = mereo.create_model("mspcaps_tiny", channels=(4, 8, 8))
    model.metadata = {"data": data}
    return model


def test_a_run_folder_names_its_own_images(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    assert choose_data([stated("photos")], [TrainConfig(data="photos")], None) == "photos"
    with pytest.raises(UsageError, match=r"photos.*--data"):
        choose_data([stated("photos")], [None], None)
    with pytest.raises(UsageError, match=r"photos.*--data"):
        choose_data([stated("photos")], [TrainConfig(data="digits")], None)


@pytest.mark.parametrize("data", ["/", ".", "..", "/proc", "photos/../.."])
def test_not_even_a_run_folder_names_a_whole_disk(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="--data"):
        choose_data([stated(data)], [TrainConfig(data=data)], None)


def test_masks_of_other_classes_are_refused_and_fewer_classes_are_not():
    images = ImageSet(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), ("0", "1"))
    network = mereo.create_model("unet_small", num_classes=3)
    network.class_names = ("0", "1", "2")
    assert match_names(images, network, "photos") is images
    network.class_names = ("background", "object", "edge")
    with pytest.raises(UsageError, match="background"):
        match_names(images, network, "photos")


def test_data_without_what_the_task_needs_are_refused_in_words():
    network, classes = mereo.create_model("resnet8_64", num_classes=2), ("a", "b")
    images = ImageSet(torch.zeros(2, 3, 64, 64, dtype=torch.uint8), torch.tensor([0, 1]), classes)
    with pytest.raises(UsageError, match="several labels of an image"):
        evaluate(network, images, task=get_task("multilabel")(class_names=classes))
