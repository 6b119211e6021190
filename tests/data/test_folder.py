"""Image folders and archives: layouts, broken files, and clear refusals."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

import mereo
from mereo.data import dataset_info, load_split, load_splits
from mereo.errors import MereoError, UsageError
from mereo.inference.predict import find_images, read_good
from pictures import picture

MakeFolder = Callable[..., Path]
TWO = ("train/cat=10", "train/dog=10", "test/cat=3", "test/dog=4")


def test_train_and_test(make_folder: MakeFolder) -> None:
    splits = load_splits(str(make_folder(*TWO)), img_size=8)
    assert [len(splits.train), len(splits.validation or ()), len(splits.test)] == [18, 2, 7]
    assert splits.class_names == ("cat", "dog")
    assert splits.in_chans == 3
    assert splits.skipped == 0
    assert splits.test.batch(torch.arange(7)).labels.tolist() == [0] * 3 + [1] * 4
    expected = torch.tensor(list(picture(len("test/cat") * 100).tobytes())).view(8, 8, 3).permute(2, 0, 1)
    assert torch.equal(splits.test.batch(torch.tensor([0])).images[0], expected / 255)


def test_val_chooses_the_epoch_with_and_without_a_test_folder(make_folder: MakeFolder) -> None:
    both = make_folder(*TWO, "val/cat=1", "val/dog=1", name="both")
    splits = load_splits(str(both), img_size=8, validation_fraction=0)
    assert [len(splits.train), len(splits.validation or ()), len(splits.test)] == [20, 2, 7]
    alone = make_folder("train/cat=10", "train/dog=10", "validation/cat=2", "validation/dog=1", name="alone")
    with pytest.warns(UserWarning, match="no test split: 2 of its 20 training images.*validation"):
        splits = load_splits(str(alone), img_size=8)
    assert splits.validation is not None
    assert [len(splits.train), len(splits.validation), len(splits.test)] == [18, 3, 2]
    assert splits.validation.batch(torch.arange(3)).labels.tolist() == [0, 0, 1]


@pytest.mark.parametrize("prefix", ["", "train/"])
def test_without_a_test_split_one_is_carved(make_folder: MakeFolder, prefix: str) -> None:
    folder = make_folder(f"{prefix}cat=10", f"{prefix}dog=20")
    found = []
    for seed in (0, 1):
        with pytest.warns(UserWarning, match="no test split: 6 of its 30 images"):
            found.append(load_splits(str(folder), img_size=8, validation_fraction=0, seed=seed))
    assert found[0].validation is None
    assert found[0].test.batch(torch.arange(6)).labels.tolist() == [0, 0, 1, 1, 1, 1]
    assert torch.equal(found[0].test.batch(torch.arange(6)).images, found[1].test.batch(torch.arange(6)).images)


def test_deeper_files_belong_to_their_class_and_hidden_ones_to_none(make_folder: MakeFolder) -> None:
    folder = make_folder("train/cat/young=3", "train/cat/old=2", "train/dog=2", "test/cat=1")
    (folder / "train" / ".cache").mkdir()
    (folder / "train" / "dog" / ".thumbs").write_text("")
    (folder / "train" / "dog" / "loop").symlink_to(folder / "train", target_is_directory=True)
    info = dataset_info(str(folder))
    assert (info.num_classes, info.splits) == (2, {"train": 7, "test": 1})


def test_an_archive_is_like_its_folder(make_folder: MakeFolder, zipped: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_folder(*TWO)
    archive = zipped(folder, tmp_path / "pictures.zip")
    one, other = (load_splits(str(path), img_size=(6, 8)) for path in (folder, archive))
    indices = torch.arange(len(one.train))
    assert torch.equal(one.train.batch(indices).images, other.train.batch(indices).images)
    cut = archive.with_name("cut.zip")
    cut.write_bytes(archive.read_bytes()[:300])
    with pytest.raises(MereoError, match="cannot be read"):
        load_splits(str(cut), img_size=8)


def test_a_folder_may_be_named_inside_the_root(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(*TWO)
    assert dataset_info("pictures", folder.parent).splits == {"train": 20, "test": 7}
    monkeypatch.setenv("MEREO_DATA", str(folder.parent))
    assert len(load_splits("pictures", img_size=4).test) == 7


def test_information_without_decoding(make_folder: MakeFolder) -> None:
    info = dataset_info(make_folder(*TWO))
    assert (info.num_classes, info.in_chans, info.size) == (2, 3, (8, 8))
    assert "cat, dog" in info.summary
    grey = make_folder(*TWO, name="grey", channels=1)
    picture(0, (5, 5), 1).save(grey / "train" / "cat" / "000.png")
    info = dataset_info(grey)
    assert (info.in_chans, info.size) == (1, None)


def test_grey_folders_have_one_channel_by_default(make_folder: MakeFolder) -> None:
    folder = str(make_folder(*TWO, channels=1))
    assert load_splits(folder, img_size=8).train.image_shape == (1, 8, 8)
    colour = load_splits(folder, img_size=8, in_chans=3).train.batch(torch.arange(3)).images
    assert torch.equal(colour[:, 0], colour[:, 2])
    with pytest.raises(UsageError, match="in_chans is 2"):
        load_splits(folder, img_size=8, in_chans=2)


def broken_files(folder: Path) -> None:
    whole = io.BytesIO()
    picture(0, (30, 30)).save(whole, "PNG")
    (folder / "notes.tiff").write_text("not a picture")
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "cut.png").write_bytes(whole.getvalue()[:400])


def test_broken_files_are_named_and_skipped(make_folder: MakeFolder) -> None:
    folder = make_folder(*TWO)
    broken_files(folder / "train" / "cat")
    with pytest.warns(UserWarning, match=r"3 files.*train/cat/cut.png \(.*empty.jpg.*notes.tiff \(not an image\)"):
        splits = load_splits(str(folder), img_size=8, validation_fraction=0)
    assert splits.skipped == 3
    assert len(splits.train) == 20
    clean = load_splits(str(make_folder(*TWO, name="clean")), img_size=8, validation_fraction=0)
    indices = torch.arange(20)
    assert torch.equal(splits.train.batch(indices).images, clean.train.batch(indices).images)
    assert torch.equal(splits.train.batch(indices).labels, clean.train.batch(indices).labels)


def test_strict_refuses_broken_files(make_folder: MakeFolder) -> None:
    folder = make_folder(*TWO)
    broken_files(folder / "train" / "dog")
    with pytest.raises(MereoError, match=r"train/dog/notes\.tiff .*strict"):
        load_splits(str(folder), img_size=8, validation_fraction=0, strict=True)


def test_only_the_first_broken_files_are_named(make_folder: MakeFolder) -> None:
    folder = make_folder(*TWO)
    for index in range(13):
        (folder / "train" / "cat" / f"bad{index:02d}.png").write_text("")
    with pytest.warns(UserWarning, match=r"13 files.*bad09\.png \([^;]*\); and 3 more\. Skipped"):
        load_splits(str(folder), img_size=8, validation_fraction=0)


def test_a_bomb_counts_as_broken(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(*TWO)
    picture(0, (12, 12)).save(folder / "train" / "cat" / "large.png")
    picture(0, (20, 20)).save(folder / "train" / "cat" / "larger.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.warns(UserWarning, match=r"2 files.*large\.png.*larger\.png"):
        splits = load_splits(str(folder), img_size=8, validation_fraction=0)
    assert splits.skipped == 2


def test_a_class_of_broken_files_only_is_an_error(make_folder: MakeFolder) -> None:
    folder = make_folder(*TWO)
    for path in (folder / "train" / "dog").iterdir():
        path.write_text("")
    with (
        pytest.warns(UserWarning, match="10 files"),
        pytest.raises(MereoError, match="class 'dog' could be read"),
    ):
        load_splits(str(folder), img_size=8, validation_fraction=0)
    for path in (folder / "train" / "cat").iterdir():
        path.write_text("")
    with pytest.raises(MereoError, match="20 files"):
        load_splits(str(folder), img_size=8, validation_fraction=0)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (("train/cat=3", "train/dog=0", "test/cat=1"), "1 class folder without images, such as 'dog'"),
        (("train/cat=3", "test/cat=1"), "one class only, 'cat'"),
        (("train/cat=0", "train/dog=0"), "no images of any class"),
        (("test/cat=3", "test/dog=1"), "no train folder"),
        (("train/cat=3", "train/dog=3", "test/bird=1"), "class 'bird'"),
        (("train/cat=3", "train/dog=3", "test/dog=0"), "split test, has no files"),
        (("cat=1", "dog=1"), "one image per class"),
    ],
)
def test_folders_that_will_not_do(make_folder: MakeFolder, counts: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_splits(str(make_folder(*counts)), img_size=8)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no images of any class.*train/<class>/<images>"):
        load_splits(str(tmp_path), img_size=8)


def test_a_folder_of_data_sets_is_refused_with_their_names(make_folder: MakeFolder) -> None:
    parent = make_folder("birds/train/crow=2", "birds/train/owl=2", "fish/train/cod=2", "fish/test/cod=1", name="all")
    with pytest.raises(UsageError, match=r"birds, fish.*all/birds"):
        load_splits(str(parent), img_size=8)
    # A class may be called train, and its images may be in folders.
    trains = make_folder("bus=4", "train=4", name="vehicles")
    with pytest.warns(UserWarning, match="no test split"):
        assert load_splits(str(trains), img_size=8).class_names == ("bus", "train")


def test_a_folder_of_data_sets_is_not_taken_for_classes(make_folder: MakeFolder) -> None:
    parent = make_folder("pets/cat=2", "pets/dog=2", "fruit/apple=2", "fruit/pear=2", name="parent")
    with pytest.raises(UsageError, match="data sets or groups of classes") as caught:
        dataset_info(str(parent))
    assert str(parent / "fruit") in str(caught.value)
    assert dataset_info(str(parent / "fruit")).num_classes == 2
    # Classes may hold only one folder each.
    assert dataset_info(str(make_folder("cat/2020=2", "dog/2020=3", name="dated"))).num_classes == 2


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (("pets/cat=2", "pets/dog=2", "fruit/fig=2", "fruit/pear=2", "car=3"), r"\(fruit, pets: each .* .*all/fruit'"),
        (("pets/cat=2", "pets/dog=2", "cat=3"), r"\(pets: it has a folder 'cat', and so has .* .*all/pets'"),
        (("birds/test/crow=2", "birds/val/owl=2", "car=3"), r"\(birds: each has folders of splits\).* .*all/birds'"),
        (("cat/train=2", "cat/test=2", "dog=3"), r"splits are inside of some classes, such as 'cat/test'.* 'test/cat'"),
    ],
)
def test_data_sets_beside_folders_of_images_are_refused(
    make_folder: MakeFolder, counts: tuple[str, ...], message: str
) -> None:
    """Each of them was trained on as one class."""
    with pytest.raises(UsageError, match=message):
        dataset_info(str(make_folder(*counts, name="all")))


def test_folders_inside_of_one_class_are_read_with_a_word(make_folder: MakeFolder) -> None:
    mixed = make_folder("cat/young=2", "cat/old=2", "dog=3", name="mixed")
    with pytest.warns(UserWarning, match=r"'cat' of images in folders \(old, young\).* give .*mixed/cat'"):
        assert dataset_info(str(mixed)).num_classes == 2
    parts = make_folder("cat/day=2", "cat/night=2", "dog/day=2", "dog/night=2", "fox=3", name="parts")
    with pytest.warns(UserWarning, match="all count as 'cat'"):
        assert dataset_info(str(parts)).num_classes == 3
    kept = make_folder("cat=2", "cat/old=2", "cat/young=2", "dog=3", name="kept")
    assert dataset_info(str(kept)).num_classes == 2


def test_an_archive_or_folder_of_one_folder_is_that_folder(
    make_folder: MakeFolder, zipped: Callable[..., Path], tmp_path: Path
) -> None:
    outer = make_folder("photos/cat=5", "photos/dog=5", name="outer")
    for path in (outer, zipped(outer, tmp_path / "outer.zip")):
        with pytest.warns(UserWarning, match="no test split"):
            splits = load_splits(str(path), img_size=8)
        assert splits.class_names == ("cat", "dog")
        assert len(splits.test) == 2
    with pytest.raises(UsageError, match="one class only"):
        dataset_info(str(make_folder("cat=3", name="single")))


def test_for_a_trained_network_all_images_of_a_folder_without_splits_count(make_folder: MakeFolder) -> None:
    plain = make_folder("cat=4", "dog=6", name="plain")
    assert len(load_split(str(plain), "whole", img_size=8)) == 10
    assert len(load_split(str(make_folder(*TWO, name="tested")), "whole", img_size=8)) == 7
    # Neither training images nor two classes are needed.
    assert load_split(str(make_folder("test/cat=3", name="few")), "whole", img_size=8).class_names == ("cat",)
    assert len(load_split(str(make_folder("cat=3", name="one")), "whole", img_size=8)) == 3


def test_long_names_of_the_splits_are_known(make_folder: MakeFolder) -> None:
    """Also where both are there, which looked like a folder of data sets."""
    folder = make_folder("training/cat=6", "training/dog=6", "valid/cat=1", "valid/dog=1", "testing/cat=2")
    splits = load_splits(str(folder), img_size=8)
    assert [len(splits.train), len(splits.validation or ()), len(splits.test)] == [12, 2, 2]


def test_splits_are_known_in_any_capitals_and_two_folders_of_one_are_refused(make_folder: MakeFolder) -> None:
    capital = make_folder("Train/cat=6", "Train/dog=6", "Val/cat=1", "Val/dog=1", "TEST/cat=2", "TEST/dog=2", name="a")
    splits = load_splits(str(capital), img_size=8)
    assert [len(splits.train), len(splits.validation or ()), len(splits.test)] == [12, 2, 4]
    both = make_folder(*TWO, "val/cat=1", "val/dog=1", "valid/cat=1", "valid/dog=1", name="both")
    with pytest.raises(UsageError, match="whose folders val and valid are both the validation split"):
        dataset_info(str(both))
    make_folder("Training/cat=2", "Training/dog=2", name="sets/first")
    make_folder("Training/cat=2", "Training/dog=2", name="sets/second")
    with pytest.raises(UsageError, match="first, second: each has folders of splits"):
        dataset_info(str(both.parent / "sets"))


def test_images_outside_of_folders_of_classes_are_named(tmp_path: Path) -> None:
    for name in ("one.jpg", "two.png"):
        picture(1, (8, 8)).save(tmp_path / name)
    with pytest.raises(UsageError, match=r"2 images, such as 'one.jpg', that are in no folder of a class.*\.csv"):
        load_splits(str(tmp_path), img_size=8)


def test_one_image_per_class_names_what_would_do(make_folder: MakeFolder) -> None:
    with pytest.raises(UsageError, match="add images, or a test folder"):
        load_splits(str(make_folder("cat=1", "dog=1")), img_size=8)


@pytest.mark.parametrize(("brand", "kind"), [(b"heic", "HEIC"), (b"mif1", "HEIC"), (b"avif", "AVIF")])
def test_pictures_of_telephones_are_listed_with_what_to_do(make_folder: MakeFolder, brand: bytes, kind: str) -> None:
    """In a folder to train on, and in a folder to predict, where they were passed over in silence."""
    folder = make_folder("train/cat=3", "train/dog=3", "test/cat=1", "test/dog=1")
    content = b"\0\0\0\x18ftyp" + brand + bytes(60)
    (folder / "train" / "cat" / "phone.heic").write_bytes(content)
    with pytest.warns(UserWarning, match=rf"phone\.heic \({kind}, which is not read; convert it to JPEG"):
        load_splits(str(folder), img_size=8, validation_fraction=0)
    found = find_images([folder / "train" / "cat"])
    assert [path.name for path in found if path.suffix == ".heic"] == ["phone.heic"]
    model = mereo.create_model("mspcaps_tiny", channels=(4, 8, 8), img_size=16, patch_size=2)
    _, places, aside = read_good(found, model)
    assert len(places) == 3 and aside[0][1].startswith(kind)


def test_drawings_are_named_and_files_of_systems_passed_over(make_folder: MakeFolder) -> None:
    folder = make_folder("train/cat=3", "train/dog=3", "test/cat=1", "test/dog=1")
    (folder / "train" / "cat" / "drawing.svg").write_text('<?xml version="1.0"?><svg/>')
    for name in ("Thumbs.db", "desktop.ini", ".DS_Store", "Icon\r"):
        (folder / "train" / "dog" / name).write_bytes(b"x")
    (folder / "train" / "__MACOSX").mkdir()
    with pytest.warns(UserWarning) as warned:
        splits = load_splits(str(folder), img_size=8, validation_fraction=0)
    lines = [str(each.message) for each in warned]
    assert splits.class_names == ("cat", "dog") and splits.skipped == 1
    assert any("drawing.svg (SVG" in line and "PNG" in line for line in lines)
    assert not any(name in line for line in lines for name in ("Thumbs", "desktop", "DS_Store", "Icon"))


def test_classes_that_differ_only_in_capitals_are_joined(tmp_path: Path) -> None:
    for name in ("Cat", "cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(4 + (name == "cat")):
            picture(number, (8, 8)).save(tmp_path / name / f"{number}.png")
    if len(list(tmp_path.iterdir())) < 3:
        pytest.skip("the file system does not tell capitals apart")
    with pytest.warns(UserWarning) as warned:
        splits = load_splits(str(tmp_path), img_size=8, validation_fraction=0)
    assert splits.class_names == ("cat", "dog") and len(splits.train) + len(splits.test) == 13
    assert any("'Cat' (4) and 'cat' (5)" in str(each.message) for each in warned)


def test_letters_stay_classes_in_both_capitals(make_folder: MakeFolder) -> None:
    with pytest.warns(UserWarning, match="'A' and 'a'"):
        assert dataset_info(str(make_folder("A=2", "a=2", "b=2", "c=2", "d=2"))).num_classes == 5


@pytest.mark.parametrize("name", ["photos.tar.gz", "photos.tgz", "photos.7z", "photos.rar"])
def test_archives_that_are_not_read_are_refused_with_what_would_do(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UsageError, match=r"unpack it .*\.zip"):
        load_splits(str(tmp_path / name), img_size=8)
    with pytest.raises(UsageError, match="unpack it"):
        find_images([tmp_path / name])


@pytest.mark.parametrize("name", ["photos.zip", "photos.tar", "photos.parquet", "shards/train-0.tar", "set/data.arrow"])
def test_files_of_many_images_are_for_evaluation_not_for_prediction(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x")
    given = path.parent if "/" in name else path
    with pytest.raises(UsageError, match="of many images") as refused:
        find_images([given])
    assert f"mereo evaluate RUN --data {given}" in str(refused.value)
    assert ("unpack" in str(refused.value)) == (name in ("photos.zip", "photos.tar"))


def test_names_with_line_breaks_and_symbols_are_read(tmp_path: Path) -> None:
    for name in ("a cat \U0001f600", "dog"):
        (tmp_path / name).mkdir()
        for number in range(4):
            picture(number, (8, 8)).save(tmp_path / name / f"line\nbreak {number}.png")
    with pytest.warns(UserWarning, match="no test split"):
        splits = load_splits(str(tmp_path), img_size=8)
    assert splits.class_names == ("a cat \U0001f600", "dog") and splits.skipped == 0
