"""Every kind of source serves the same images as a folder that is decoded into memory."""

import gc
import gzip
import importlib.util
import os
import sys

import pytest
import torch

from mereo.data import dataset_info, load_split, load_splits
from mereo.data.stream import StreamedSet, is_stream, open_stream, write_shards
from mereo.data.stream.open import expand
from mereo.data.stream.tar_index import make_index, read_index
from mereo.data.stream.tar_store import _Opened
from mereo.errors import MereoError, UsageError
from sources import NAMES, csv_of, encoded, tables_of

KINDS = ("shards", "one shard each", "parquet", "file.arrow", "stream.arrow", "names.parquet", "csv", "folder")


def everything(images):
    batch = images.batch(torch.arange(len(images)))
    return sorted(zip(batch.labels.tolist(), (image.numpy().tobytes() for image in batch.images), strict=True))


def source_of(kind, folder, tmp_path):
    if kind == "shards":
        write_shards(folder, tmp_path / "out", shard_bytes=6000)
        return str(tmp_path / "out")
    if kind == "one shard each":
        write_shards(folder, tmp_path / "out")
        return str(tmp_path / "out" / "{train,test}-{000000..000000}.tar")
    if kind == "folder":
        return str(folder)
    if kind == "csv":
        return str(csv_of(folder, tmp_path / "list.csv"))
    return str(tables_of(folder, tmp_path / "out", kind.removeprefix("names."), known="names" not in kind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_serves_what_the_folder_holds(kind, folder, tmp_path):
    expected = load_splits(str(folder), img_size=8, validation_fraction=0.125)
    data = source_of(kind, folder, tmp_path)
    splits = load_splits(
        data, img_size=8, validation_fraction=0.125, stream=True if kind in ("csv", "folder") else None
    )
    assert isinstance(splits.train, StreamedSet) and isinstance(splits.test, StreamedSet)
    assert splits.class_names == NAMES and splits.in_chans == 3
    assert [len(splits.train), len(splits.validation), len(splits.test)] == [21, 3, 9]
    assert everything(splits.test) == everything(expected.test)
    whole = [sorted(everything(s.train) + everything(s.validation)) for s in (splits, expected)]
    assert whole[0] == whole[1]
    if kind != "folder":
        info = dataset_info(data)
        assert (info.num_classes, info.in_chans, dict(info.splits)) == (3, 3, {"train": 24, "test": 9})
    stored = load_splits(data, img_size=8, validation_fraction=0, stream=False)
    assert not isinstance(stored.train, StreamedSet) and everything(stored.test) == everything(expected.test)


def test_a_file_is_closed_before_its_owner_in_a_cycle_is_finalised(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"abc")
    opened = _Opened(tmp_path / "a.tar")
    held, file = [opened], opened.file
    opened.itself = opened
    del opened
    # This collection puts the owner, which is found through the list, behind the file; the next one finalises in order.
    gc.collect()
    number = file.fileno()
    del held, file
    gc.collect()  # a warning would be an error
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(number)


def test_splits_in_folders_of_their_own(folder, tmp_path):
    tables_of(folder, tmp_path / "out", "stream.arrow")
    for split in ("train", "test"):  # as `datasets` saves a whole dataset
        (tmp_path / "out" / split).mkdir()
        (tmp_path / "out" / f"{split}.arrow").rename(tmp_path / "out" / split / "data-00000-of-00001.arrow")
    splits = open_stream(tmp_path / "out", tmp_path).splits
    assert {name: len(split) for name, split in splits.items()} == {"train": 24, "test": 9}


def test_one_split_and_a_limit(folder, tmp_path):
    write_shards(folder, tmp_path / "out")
    assert len(load_split(str(tmp_path / "out"), "test", img_size=8)) == 9
    splits = load_splits(str(tmp_path / "out"), img_size=8, validation_fraction=0, limit=6)
    assert splits.train.batch(torch.arange(6)).labels.sort().values.tolist() == [0, 0, 1, 1, 2, 2]


def test_shards_hold_all_classes_and_are_the_same_again(folder, tmp_path):
    paths = write_shards(folder, tmp_path / "a", shard_bytes=6000)
    again = write_shards(folder, tmp_path / "b", shard_bytes=6000)
    assert len(paths) > 4 and all(path.stat().st_size <= 6000 + 1024 for path in paths)
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]
    assert len(set(make_index(paths[0]).labels)) > 1, "shuffled"
    assert write_shards(folder, tmp_path / "a", shard_bytes=6000) == paths, "may be repeated"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x.tar").write_bytes(b"")
    with pytest.raises(UsageError, match="target"):
        write_shards(folder, tmp_path / "other")


def test_an_index_is_made_once_and_again_for_another_file(make_tar, tmp_path, monkeypatch):
    tar = make_tar("a.tar", {"x.png": encoded(0), "x.cls": b"1", "y/z.PNG": encoded(1), "y/z.json": b'{"label": 0}'})
    first = read_index(tar)
    assert first.labels.tolist() == [1, 0]
    content = tar.read_bytes()
    assert [content[o : o + s] for o, s in zip(first.offsets, first.sizes, strict=True)] == [encoded(0), encoded(1)]
    monkeypatch.setattr("mereo.data.stream.tar_index.make_index", lambda *given: pytest.fail("made again"))
    assert read_index(tar).offsets.tolist() == first.offsets.tolist()
    monkeypatch.undo()
    (kept,) = (tmp_path / "cache").rglob("*.npz")
    kept.write_bytes(kept.read_bytes()[:200])  # damaged
    assert read_index(tar).labels.tolist() == [1, 0]
    tar.write_bytes(make_tar("b.tar", {"x.png": encoded(0), "x.cls": b"5"}).read_bytes())
    assert read_index(tar).labels.tolist() == [5]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"x.png": encoded(0)}, "no .cls or .json.*'x'"),
        ({"photos/cat/x.png": encoded(0)}, "unpack it and give the folder"),
        ({"x.cls": b"1"}, "no image"),
        ({"x.png": encoded(0), "x.cls": b""}, r"x\.cls.*label"),
        ({"x.png": encoded(0), "x.json": b"[[1]]"}, r"x\.json.*label"),
        ({"x.png": encoded(0), "x.json": b"{" * 5000}, r"x\.json.*label"),
        ({"x.png": encoded(0), "x.json": b'{"label": true}'}, r"x\.json.*label"),
        ({"x.png": encoded(0), "x.cls": b"9" * 20}, "too large"),
        ({"x.png": encoded(0), "x.jpg": encoded(1), "x.cls": b"1"}, "two images"),
        ({"x.png": encoded(0), "x.cls": b"1"}, "one class"),
    ],
)
def test_tar_files_that_cannot_be_used(members, message, make_tar):
    with pytest.raises((UsageError, MereoError), match=message):
        open_stream(str(make_tar("a.tar", members)), "")


def test_damaged_tar_files(make_tar, tmp_path):
    tar = make_tar("a.tar", {"x.png": encoded(0), "x.cls": b"1"})
    for content in (tar.read_bytes()[:600], b"", b"\x00" * 100, gzip.compress(tar.read_bytes()), b"\xff" * 5000):
        tar.write_bytes(content)
        with pytest.raises((MereoError, UsageError), match=r"a\.tar"):
            open_stream(str(tar), tmp_path)


def test_names_of_splits_and_of_classes(make_tar, tmp_path):
    for number, name in enumerate(("train", "imagenet-val", "test")):
        labels = {"train": (2, 5), "imagenet-val": (5, 2), "test": (-1, -1)}[name]
        make_tar(f"set/{name}-0.tar", {
            "a.png": encoded(number), "a.cls": str(labels[0]).encode(), "b.png": encoded(9), "b.cls": b"%d" % labels[1],
        })  # fmt: skip
    dataset = open_stream(str(tmp_path / "set"), tmp_path)
    assert dataset.class_names == ("2", "5")
    assert {name: split.labels.tolist() for name, split in dataset.splits.items()} == {"train": [0, 1], "test": [1, 0]}
    (tmp_path / "set" / "classes.txt").write_text("a\nb\nc\nd\ne\nf\n")
    assert open_stream(str(tmp_path / "set"), tmp_path).splits["test"].labels.tolist() == [5, 2]
    (tmp_path / "set" / "classes.txt").write_text("a\nb\n")
    with pytest.raises(UsageError, match=r"label 5.*class names"):
        open_stream(str(tmp_path / "set"), tmp_path)


def test_without_a_test_split_one_is_carved(make_tar, tmp_path):
    members = {
        f"{i}.{kind}": encoded(i) if kind == "png" else b"ab"[i % 2 :][:1] for i in range(10) for kind in ("png", "cls")
    }
    make_tar("set/0.tar", members)
    with pytest.warns(UserWarning, match="2 of its 10 images"):
        dataset = open_stream("set", tmp_path)
    assert dataset.class_names == ("a", "b") and len(dataset.splits["train"]) == 8


def test_patterns(tmp_path, folder):
    assert expand("a-{08..10}.{tar,b}") == [f"a-{n}.{s}" for n in ("08", "09", "10") for s in ("tar", "b")]
    with pytest.raises(UsageError, match=r"\{9\.\.1\}"):
        expand("{9..1}")
    write_shards(folder, tmp_path / "out", shard_bytes=6000)
    assert len(open_stream("out/*.tar", tmp_path).splits["train"]) == 24
    with pytest.raises(UsageError, match=r"train-000099\.tar does not exist"):
        open_stream("out/train-{000098,000000,000099}.tar".replace("000098,", ""), tmp_path)
    with pytest.raises(UsageError, match="no such file"):
        open_stream("out/none-*.tar", tmp_path)
    assert is_stream("no-*.tar", tmp_path) and is_stream("hf:mnist", tmp_path) and not is_stream(folder, tmp_path)
    (folder / "archive.tar").write_bytes(b"")
    assert not is_stream(folder, tmp_path), "an image folder stays one, whatever else is in it"
    odd = folder.rename(tmp_path / "photos [2020]")
    assert not is_stream(odd, tmp_path)


def test_tables_that_cannot_be_used(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    for table, message in (
        ({"pixels": [b"x"], "label": [1]}, "no column of images.*pixels, label"),
        ({"image": [b"x"], "kind": [1]}, "no column of labels"),
        ({"image": [b"x", b"y"], "label": [1, None]}, "without a label"),
        ({"image": [b"x", b"y"], "label": [[0.5], [1.5]]}, "labels of kind list"),
        ({"image": [b"x", b"y"], "label": [b"a", b"b"]}, "labels of kind binary"),
    ):
        parquet.write_table(arrow.table(table), path)
        with pytest.raises(UsageError, match=message):
            open_stream(str(path), tmp_path)
    for name in ("t.parquet", "t.arrow"):
        (tmp_path / name).write_bytes(b"no table")
        with pytest.raises(MereoError, match=name):
            open_stream(str(tmp_path / name), tmp_path)


@pytest.mark.parametrize(("image", "label"), [("Image", "Label"), ("img", "category"), ("image_bytes", "class_name")])
def test_usual_names_of_columns_are_known(tmp_path, image, label):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    labels = ["cat", "dog"] * 3
    parquet.write_table(arrow.table({image: [encoded(n) for n in range(6)], label: labels}), tmp_path / "t.parquet")
    with pytest.warns(UserWarning, match="set aside"):
        assert open_stream(str(tmp_path / "t.parquet"), tmp_path).class_names == ("cat", "dog")


def test_missing_libraries_are_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MereoError, match=r"datasets.*pip install"):
        open_stream("hf:mnist", tmp_path)
    (tmp_path / "t.parquet").write_bytes(b"")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MereoError, match=r"pyarrow.*pip install"):
        open_stream(str(tmp_path / "t.parquet"), tmp_path)


def test_hub(folder, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    tables = tables_of(folder, tmp_path / "out", "parquet")
    files = {split: str(tables / f"{split}-00000-of-00001.parquet") for split in ("train", "test")}
    loaded = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "hub"))
    loaded = loaded.cast_column("image", datasets.Image())
    loaded = loaded.cast_column("label", datasets.ClassLabel(names=list(NAMES)))
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *words: asked.append(words) or loaded)
    splits = load_splits("hf:some/name:small", img_size=8, validation_fraction=0)
    assert asked == [("some/name", "small")] and splits.class_names == NAMES
    expected = load_splits(str(folder), img_size=8, validation_fraction=0)
    assert everything(splits.train) == everything(expected.train)

    def fail(*words):
        raise ConnectionError("no route\nto the hub")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(MereoError, match=r"hf:some/name.*\(no route\).*network"):
        load_splits("hf:some/name", img_size=8)
