"""Data and surroundings that changed before a run is resumed: noticed, named, and refused or warned of."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from mereo.data import Splits
from mereo.data.images import ImageSet
from mereo.errors import UsageError
from mereo.models.weights import load_tensors, save_tensors
from mereo.training.provenance import compare_with_saved, data_changes, describe_data, describe_environment
from mereo.training.trainer import train

NAMES = ("cat", "dog", "eel")
ENVIRONMENT = describe_environment(torch.device("cpu"), 1, True)


def image_set(seed: int, count: int, names: tuple[str, ...] = NAMES) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, 5, 6), generator=generator, dtype=torch.uint8)
    return ImageSet(images, torch.arange(count) % len(names), names)


def splits(**changes: ImageSet | None) -> Splits:
    parts = {"train": image_set(0, 30), "validation": image_set(1, 6), "test": image_set(2, 9)} | changes
    return Splits(**parts, class_names=parts["train"].class_names, in_chans=3, skipped=0)


def as_saved(data: Splits) -> dict:
    return json.loads(json.dumps(describe_data(data)))


def changed(images: ImageSet, place: object, value: object) -> ImageSet:
    pixels = images.images.clone()
    pixels[place] = value
    return ImageSet(pixels, images.labels, images.class_names)


TRAIN = image_set(0, 30)
TEST = image_set(2, 9)
SWAPPED = torch.tensor([3, 1, 2, 0, *range(4, 30)])


def named(*names: str) -> ImageSet:
    return ImageSet(TRAIN.images, TRAIN.labels, names)


CHANGES = {
    "a class renamed": (
        {"train": ImageSet(TRAIN.images, TRAIN.labels, ("ape", "dog", "eel"))},
        "'cat' gone, 'ape' new",
    ),
    "classes swapped": ({"train": ImageSet(TRAIN.images, TRAIN.labels, ("dog", "cat", "eel"))}, "another order"),
    "a class more": ({"train": ImageSet(TRAIN.images, TRAIN.labels, (*NAMES, "fox"))}, "'fox' new"),
    "an image less": ({"train": TRAIN.subset(torch.arange(29))}, "train: 30 images, now 29"),
    "an image more": ({"test": image_set(2, 10)}, "test: 9 images, now 10"),
    "an image moved to another class": (
        {"train": ImageSet(TRAIN.images, torch.cat((torch.tensor([1]), TRAIN.labels[1:])), NAMES)},
        "10 images of 'cat', now 9",
    ),
    "labels exchanged": ({"train": ImageSet(TRAIN.images, TRAIN.labels.flip(0), NAMES)}, "train: labels differ"),
    "an image replaced": ({"train": changed(TRAIN, 4, TRAIN.images[5])}, "train: images of 'dog' replaced"),
    "two images exchanged": ({"train": TRAIN.subset(SWAPPED)}, "images of 'cat' replaced, changed or in another order"),
    "an image darkened": (
        {"test": changed(image_set(2, 9), 2, image_set(2, 9).images[2] // 2)},
        "test: images of 'eel'",
    ),
    "nothing held out": ({"validation": None}, "validation: gone"),
    "another size": (
        {"test": ImageSet(image_set(2, 9).images[..., 1:], image_set(2, 9).labels, NAMES)},
        r"\[3, 5, 5\]",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_data_that_changed_are_refused_and_named(change):
    parts, named = CHANGES[change]
    saved, now = ({"data": as_saved(data), "environment": ENVIRONMENT} for data in (splits(), splits(**parts)))
    with pytest.raises(UsageError, match=rf"runs/x.*{named}.*--weights runs/x"):
        compare_with_saved(Path("runs/x"), saved, now)


def test_the_same_data_are_taken_without_a_word():
    now = {"data": describe_data(splits()), "environment": ENVIRONMENT}
    assert compare_with_saved(Path("x"), {"data": as_saved(splits()), "environment": ENVIRONMENT}, now) == []


def test_rounding_is_warned_of_and_not_refused():
    pixels = TRAIN.images.clone().flatten()
    places = torch.randperm(len(pixels))[: len(pixels) // 200]
    pixels[places] = pixels[places].clamp(max=254) + 1
    rounded = ImageSet(pixels.view_as(TRAIN.images), TRAIN.labels, NAMES)
    assert data_changes(as_saved(splits()), describe_data(splits(train=rounded))) == ([], True)


def test_more_classes_than_sums():
    names = tuple(f"class {number}" for number in range(300))
    first, second = (image_set(0, 600, names) for _ in range(2))
    second.images[299] = 0
    others = {"validation": None, "test": image_set(1, 300, names)}
    found, _ = data_changes(as_saved(splits(train=first, **others)), describe_data(splits(train=second, **others)))
    assert found == ["train: images of 'class 43', 'class 299' replaced, changed or in another order"]


def test_a_split_too_large_is_sampled(monkeypatch):
    monkeypatch.setattr("mereo.training.provenance.MOST_VALUES", 10 * 90)
    before = as_saved(splits())
    unseen, seen = changed(TRAIN, 1, 0), changed(TRAIN, 3, 0)
    assert data_changes(before, describe_data(splits(train=unseen)))[0] == []
    assert data_changes(before, describe_data(splits(train=seen)))[0] != []


@pytest.mark.parametrize(
    ("key", "value"),
    [("threads", 99), ("processes", 4), ("torch", "1.0"), ("device", "cuda"), ("sync_batchnorm", True)],
)
def test_other_surroundings_are_warned_of(key, value):
    data = describe_data(splits())
    saved = {"data": data, "environment": ENVIRONMENT | {key: value}}
    (warning,) = compare_with_saved(Path("x"), saved, {"data": data, "environment": ENVIRONMENT})
    assert f"{key} {value} (now {ENVIRONMENT[key]})" in warning


def test_another_reader_of_images_is_named_where_they_differ():
    data = describe_data(splits())
    saved = {"data": data, "environment": ENVIRONMENT | {"Pillow": "1.2"}}
    assert compare_with_saved(Path("x"), saved, {"data": data, "environment": ENVIRONMENT}) == []
    other = describe_data(splits(train=changed(TRAIN, 4, 0)))
    with pytest.raises(UsageError, match=r"Pillow 1\.2"):
        compare_with_saved(Path("x"), saved, {"data": other, "environment": ENVIRONMENT})


@pytest.mark.parametrize(
    "content",
    [5, [], {}, {"class_names": 3}, {"class_names": list(NAMES), "splits": {"train": {"count": 30}}}],
    ids=str,
)
@pytest.mark.parametrize("name", ["data", "environment"])
def test_a_record_that_is_none_is_refused(content, name):
    now = {"data": describe_data(splits()), "environment": ENVIRONMENT}
    with pytest.raises(UsageError, match="remove it to start"):
        compare_with_saved(Path("x"), {**now, name: content}, now)


@pytest.fixture
def photos(tmp_path) -> Path:
    for split, count in (("train", 12), ("val", 4), ("test", 4)):
        for index in range(count):
            path = tmp_path / "photos" / split / ("red" if index % 2 else "blue") / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (16, 16), (200, 10, 9 * index) if index % 2 else (10, 9 * index, 200)).save(path)
    return tmp_path / "photos"


def swap_classes(photos: Path) -> None:
    for split in ("train", "val", "test"):
        (photos / split / "red").rename(photos / split / "x")
        (photos / split / "blue").rename(photos / split / "red")
        (photos / split / "x").rename(photos / split / "blue")


def replace_an_image(photos: Path) -> None:
    shutil.copy(photos / "train" / "red" / "1.png", photos / "train" / "blue" / "2.png")


@pytest.mark.parametrize("change", [swap_classes, replace_an_image])
def test_a_run_whose_folder_of_images_changed_is_not_resumed(small_config, silent, photos, change):
    settings = {"data": str(photos), "batch_size": 4, "epochs": 1, "name": "run"}
    done = train(small_config(**settings), silent)
    state = done.folder.state.read_bytes()
    change(photos)
    with pytest.raises(UsageError, match=r"images of .* replaced"):
        train(small_config(**settings, resume=True), silent)
    assert done.folder.state.read_bytes() == state, "the checkpoint is as it was"


def test_a_checkpoint_of_an_older_version_goes_on_with_a_warning(small_config, capsys):
    done = train(small_config(epochs=1, name="run"))
    tensors, metadata = load_tensors(done.folder.state)
    for name in ("data", "environment"):
        del metadata["progress"][name]
    save_tensors(done.folder.state, tensors, metadata)
    capsys.readouterr()
    train(small_config(epochs=1, name="run", resume=True))
    assert "warning: this checkpoint does not record its data" in capsys.readouterr().out


@pytest.mark.long
def test_threads_that_changed_are_warned_of(small_config, capsys):
    train(small_config(epochs=1, name="run"))
    torch.set_num_threads(2)
    train(small_config(epochs=1, name="run", resume=True))
    assert "threads 1 (now 2)" in capsys.readouterr().out
