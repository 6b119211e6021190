"""Every registered data set: its facts are valid, and its reader serves what they state or reports what is missing."""

import importlib.util
from pathlib import Path

import pytest
import torch

from mereo.data import DATASETS, Augmentation, Batch, DatasetInfo, load_splits, sets
from mereo.errors import MereoError

every_dataset = pytest.mark.parametrize("info", [pytest.param(info, id=name) for name, info in DATASETS.items()])


MANY = 2000
"""Images that take seconds to make."""


def is_rendered(info: DatasetInfo) -> bool:
    """Whether many images are made on the spot."""
    return not info.files and info.load is None and sum(info.splits.values()) > MANY


@every_dataset
def test_its_facts_are_valid(info: DatasetInfo) -> None:
    assert (info.read is None) != (info.load is None) and info.path is None and info.summary and info.source
    assert Augmentation.parse(info.augment).texts == list(info.augment)
    needed = {"images"} if info.read is not None else set(info.fields)
    assert needed <= set(info.fields) <= set(Batch._fields)
    assert info.read is None or {"labels", "masks", "boxes", "attributes", "multi_hot", "values"} & set(info.fields)
    assert {"train", "test"} <= set(info.splits) <= {"train", "validation", "test"} and min(info.splits.values()) > 0


@every_dataset
def test_it_is_registered_in_a_file_of_its_own(info: DatasetInfo) -> None:
    assert f'"{info.name}"' in (Path(sets.__file__).parent / f"{info.name}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "info",
    [pytest.param(info, id=name, marks=[pytest.mark.long] * is_rendered(info)) for name, info in DATASETS.items()],
)
def test_its_reader_serves_what_the_facts_state_or_names_what_is_missing(info: DatasetInfo, tmp_path: Path) -> None:
    size = info.size or (8, 8)
    if info.fields == ("tokens",):
        windows = load_splits(info.name, length=100, root=tmp_path)
        for name, count in info.splits.items():
            assert len(getattr(windows, name)) == -(-count // 100 if info.counts == "bytes" else -count)
        served = windows.test.batch(torch.arange(3))
        assert served.tokens is not None and served.tokens.shape == (3, 101)
        assert int(served.tokens.max()) < info.num_classes and served.images is None
        return
    if info.fields == ("tokens", "labels"):
        made = load_splits(info.name, length=5, root=tmp_path, limit=20)
        assert (len(made.train), len(made.test)) == (20, info.splits["test"])
        batch = made.test.batch(torch.arange(3))
        assert batch.tokens is not None and batch.tokens.shape == batch.labels.shape
        assert int(batch.tokens.max()) < info.num_classes and int(batch.labels.max()) < info.num_classes
        return
    if info.fields[0] == "points":
        sets = load_splits(info.name, length=5, root=tmp_path, limit=20)
        assert (len(sets.train), len(sets.test)) == (20, info.splits["test"]) and not sets.class_names
        drawn = sets.train.batch(torch.arange(3), generator=torch.Generator())
        for served in (drawn, sets.test.batch(torch.arange(3))):
            assert {name for name, value in served._asdict().items() if value is not None} == set(info.fields)
            assert served.points is not None and served.pointers is not None and served.lengths is not None
            assert served.points.shape[2] == info.in_chans and (served.pointers.amax(1) <= served.lengths).all()
        return
    if info.fields == ("rows", "labels"):
        tables = load_splits(info.name, length=5, root=tmp_path, limit=20)
        assert (len(tables.train), len(tables.test)) == (20, info.splits["test"])
        assert len(tables.class_names) == info.num_classes
        batch = tables.test.batch(torch.arange(3))
        assert batch.rows is not None and batch.rows.shape[2] == info.in_chans
        assert 0 <= int(batch.labels.min()) <= int(batch.labels.max()) < info.num_classes
        return
    if info.fields == ("sequences", "lengths", "labels"):
        bodies = load_splits(info.name, length=9, root=tmp_path, limit=20)
        assert (len(bodies.train), len(bodies.test)) == (20, info.splits["test"])
        seen = bodies.test.batch(torch.arange(3))
        assert {name for name, value in seen._asdict().items() if value is not None} == set(info.fields)
        assert seen.sequences.shape[1] == 9 and len(bodies.class_names) == info.num_classes
        return
    if info.fields == ("regions", "pointers"):
        shelves = load_splits(info.name, length=2, root=tmp_path, limit=20)
        assert (len(shelves.train), len(shelves.test)) == (20, info.splits["test"])
        seen = shelves.test.batch(torch.arange(3))
        assert {name for name, value in seen._asdict().items() if value is not None} == set(info.fields)
        assert seen.regions is not None and seen.pointers is not None
        assert int(seen.pointers.max()) < seen.regions.shape[1] and (seen.pointers == 0).sum(1).tolist() == [1, 1, 1]
        return
    if info.fields == ("regions", "labels"):
        scenes = load_splits(info.name, length=2, root=tmp_path, limit=20)
        assert (len(scenes.train), len(scenes.test)) == (20, info.splits["test"])
        seen = scenes.test.batch(torch.arange(3))
        assert {name for name, value in seen._asdict().items() if value is not None} == set(info.fields)
        assert len(scenes.class_names) == info.num_classes and int(seen.labels.max()) < info.num_classes
        return
    if info.fields == ("prompts", "images", "labels"):
        drawn = load_splits(info.name, length=2, root=tmp_path, limit=20)
        assert (len(drawn.train), len(drawn.test)) == (20, info.splits["test"])
        first = drawn.test.batch(torch.arange(3))
        assert {name for name, value in first._asdict().items() if value is not None} == set(info.fields)
        assert first.images.shape == (3, info.in_chans, *size) and len(drawn.class_names) == info.num_classes
        return
    if info.files:
        scipy = "|scipy" if importlib.util.find_spec("scipy") is None else ""
        with pytest.raises(MereoError, match=f"was not found{scipy}"):
            load_splits(info.name, root=tmp_path, img_size=size, download=False)
        return
    splits = load_splits(info.name, root=tmp_path, img_size=size, validation_fraction=0)
    assert {name: len(getattr(splits, name)) for name in info.splits} == dict(info.splits)
    assert len(splits.class_names) == info.num_classes and splits.in_chans == info.in_chans
    batch = splits.test.batch(torch.arange(3))
    assert batch.images.shape == (3, info.in_chans, *size)
    served = {name for name, value in zip(batch._fields, batch, strict=True) if value is not None}
    # Images with masks have labels that say nothing.
    assert served - {"labels"} == set(info.fields) - {"labels"} and "labels" in served
    assert batch.labels.reshape(3, -1).shape[1] == info.labels_per_image
