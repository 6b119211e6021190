"""load_splits: sizes, held-out images, limits, memory and progress; and what the import costs."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mereo.data import Images, ImageSet, dataset_info, load_size, load_split, load_splits
from mereo.data.load import seconds_to_read
from mereo.data.storage import Storage
from mereo.errors import MereoError, UsageError
from mereo.runtime.memory import available_memory

TWO = ("train/cat=10", "train/dog=20", "test/cat=3", "test/dog=4")


def labels(images: Images | None) -> list[int]:
    assert images is not None
    return images.batch(torch.arange(len(images))).labels.bincount().tolist()


def test_load_size() -> None:
    assert load_size((24, 24), 0.75) == (32, 32)
    assert load_size((28, 30), 1.0) == (28, 30)
    assert load_size((48, 48), 0.75) == (64, 64)
    with pytest.raises(UsageError, match="crop_pct is 0"):
        load_size((24, 24), 0)


def test_crops_are_stored_larger() -> None:
    splits = load_splits("digits", img_size=6, crop_pct=0.75, limit=10)
    assert splits.train.image_shape == (1, 8, 8)
    assert splits.test.batch(torch.arange(2), crop=(6, 6)).images.shape == (2, 1, 6, 6)


def test_validation_is_stratified_and_follows_the_seed() -> None:
    one, same, other = (load_splits("digits", img_size=8, seed=seed) for seed in (0, 0, 1))
    assert len(one.train) + len(one.validation or ()) == 1438
    assert len(one.validation or ()) == 144
    assert max(labels(one.validation)) - min(labels(one.validation)) <= 1
    pixels = [splits.validation.batch(torch.arange(144)).images for splits in (one, same, other) if splits.validation]
    assert torch.equal(pixels[0], pixels[1])
    assert not torch.equal(pixels[0], pixels[2])
    tests = [splits.test.batch(torch.arange(359)).images for splits in (one, other)]
    assert torch.equal(tests[0], tests[1])


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("options", [{}, {"limit": 50, "seed": 1}, {"validation_fraction": 0.3}], ids=str)
def test_one_split_is_that_of_all_of_them(split: str, options: dict[str, Any]) -> None:
    wanted = getattr(load_splits("digits", img_size=8, **options), split)
    found = load_split("digits", split, img_size=8, **options)
    assert len(found) == len(wanted)
    ours, theirs = (images.batch(torch.arange(len(wanted))) for images in (found, wanted))
    assert torch.equal(ours.images, theirs.images) and torch.equal(ours.labels, theirs.labels)


def test_of_the_other_splits_nothing_is_decoded(make_folder: Callable[..., Path]) -> None:
    folder = make_folder(*TWO)
    (folder / "train/cat/000.png").write_bytes(b"no image")
    assert len(load_split(str(folder), img_size=8)) == 7  # a warning would be an error
    with pytest.warns(UserWarning, match="1 file in"):
        load_split(str(folder), "train", img_size=8, validation_fraction=0)
    with pytest.raises(UsageError, match="has no validation images"):
        load_split(str(folder), "validation", img_size=8, validation_fraction=0)
    with pytest.raises(UsageError, match="split is 'val'"):
        load_split(str(folder), "val", img_size=8)


def test_a_limit_holds_for_training_images_and_for_those_held_out_in_proportion() -> None:
    whole, few = load_splits("digits", img_size=8), load_splits("digits", img_size=8, limit=50)
    assert len(few.train) == 50
    assert set(labels(few.train)) == {5}
    assert len(few.test) == 359
    assert len(few.validation) == 6, "144 of 1294"
    stored = {image.numpy().tobytes() for image in whole.validation.images}
    assert all(image.numpy().tobytes() in stored for image in few.validation.images), "never those trained on"
    more = load_splits("digits", img_size=8, limit=5000)
    assert (len(more.train), len(more.validation)) == (1294, 144)


def test_a_limit_leaves_validation_images_of_the_data_whole(make_folder: Callable[..., Path]) -> None:
    splits = load_splits(str(make_folder(*TWO, "val/cat=3", "val/dog=2")), img_size=8, limit=6)
    assert (labels(splits.train), labels(splits.validation), labels(splits.test)) == ([2, 4], [3, 2], [3, 4])


def test_a_limit_of_test_images_takes_classes_in_proportion_and_the_same_for_every_seed() -> None:
    whole = load_splits("digits", img_size=8)
    few, again = (load_splits("digits", img_size=8, test_limit=20, seed=seed) for seed in (0, 1))
    assert len(few.train) == len(whole.train) and set(labels(few.test)) == {2}
    assert few.test.images.equal(again.test.images)
    assert len(load_splits("digits", img_size=8, test_limit=5000).test) == 359


def test_reading_is_timed_by_some_images_of_a_path_and_not_of_data_in_memory(
    make_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(*TWO)
    (folder / "train" / "cat" / "broken.png").write_bytes(b"no image")
    moments = iter([0, 1, 8, 9, 20, 23, 24, 30, 99, 100])
    monkeypatch.setattr("mereo.data.load.monotonic", lambda: next(moments))
    monkeypatch.setattr("mereo.data.load._TIMED", 3)
    # Parts of three of the files, one of which cannot be read, in 7, 3 and 69 seconds, the last one past 50.
    assert seconds_to_read(dataset_info(str(folder)), (8, 8), 3, 50) == 3 / 3
    assert seconds_to_read(dataset_info("digits"), (8, 8), 1, 50) == 0


def test_progress_counts_all_splits(make_folder: Callable[..., Path]) -> None:
    for data in ("digits", str(make_folder(*TWO))):
        seen: list[tuple[int, int]] = []
        splits = load_splits(data, img_size=8, progress=lambda done, total: seen.append((done, total)))  # noqa: B023
        total = len(splits.train) + len(splits.validation or ()) + len(splits.test)
        assert seen[-1] == (total, total)
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_mapped_images_equal_those_in_memory(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for data in ("digits", str(make_folder(*TWO))):
        memory = load_splits(data, img_size=9)
        mapped = load_splits(data, img_size=9, memory_budget=0, cache_dir=cache)
        for one, other in zip(memory[:3], mapped[:3], strict=True):
            assert isinstance(one, ImageSet)
            assert isinstance(other, ImageSet)
            assert torch.equal(one.images, other.images)
            assert torch.equal(one.labels, other.labels)
    assert cache.is_dir()
    assert not list(cache.iterdir())


def test_the_budget_is_shared_by_all_splits(tmp_path: Path) -> None:
    storage = Storage(100, tmp_path)
    first = storage.allocate(2, 3, 10)
    assert storage.left == 40
    second = storage.allocate(50)
    second.fill_(7)
    assert storage.left == 40
    assert (first.shape, second.shape) == ((2, 3, 10), (50,))
    assert available_memory() > 0


def test_storage_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="memory_budget is -1"):
        Storage(-1)
    with pytest.raises(MereoError, match="give a cache_dir"):
        Storage(0, tmp_path).allocate(2**60)
    (tmp_path / "file").write_text("")
    with pytest.raises(MereoError, match="cannot be written"):
        Storage(0, tmp_path / "file").allocate(10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"validation_fraction": 1.0}, "validation_fraction is 1.0"),
        ({"limit": 0}, "limit is 0"),
        ({"in_chans": 4}, "in_chans is 4"),
        ({"img_size": 0}, "img_size is 0"),
        ({"crop_pct": 1.5}, "crop_pct is 1.5"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_splits("digits", **{"img_size": 8, **arguments})


def test_too_few_images_to_hold_out(make_folder: Callable[..., Path]) -> None:
    folder = make_folder("train/cat=1", "train/dog=1", "test/cat=1")
    with pytest.raises(UsageError, match="no class has two training images"):
        load_splits(str(folder), img_size=8)
    assert load_splits(str(folder), img_size=8, validation_fraction=0).validation is None


def test_where_test_images_show_new_identities_held_out_images_do_too(make_folder: Callable[..., Path]) -> None:
    folder = make_folder(*(f"train/{name}=2" for name in "abcdef"), "test/x=2", "test/y=2")
    splits = load_splits(str(folder), img_size=8, unseen=True)
    assert splits.validation is not None and splits.validation.strata.bincount().unique().tolist() == [0, 2]
    assert not {*splits.validation.strata.tolist()} & {*splits.train.strata.tolist()}


def test_of_identities_with_few_images_whole_ones_are_held_out(make_folder: Callable[..., Path]) -> None:
    folder = make_folder(*(f"{name}=5" for name in "abcdef"))
    for unseen, held in ((True, {4}), (False, {1})):
        with pytest.warns(UserWarning, match="no test split"):
            splits = load_splits(str(folder), img_size=8, unseen=unseen)
        assert splits.validation is not None and {*splits.validation.strata.bincount().tolist()} - {0} == held
        assert bool({*splits.validation.strata.tolist()} & {*splits.train.strata.tolist()}) is not unseen


@pytest.mark.long
def test_the_import_is_light() -> None:
    heavy = ("torchvision", "matplotlib", "rich", "sklearn", "scipy", "PIL")
    line = (
        f"import sys, torch; theirs = {{*sys.modules}}; import mereo.data;"
        f" sys.exit(' '.join(({{*sys.modules}} - theirs) & {{*{heavy!r}}}) or 0)"
    )
    subprocess.run([sys.executable, "-c", line], check=True)
