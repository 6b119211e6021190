"""Malformed tar files, tables and patterns end in a message: no hang, no memory, no lost samples."""

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import ipc, parquet

from mereo.data.stream.hub import open_hub
from mereo.data.stream.open import expand, open_stream
from mereo.data.stream.tar_index import make_index
from mereo.errors import MereoError, UsageError


def shard(labels=tuple("0101")):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for n, label in enumerate(labels):
            for name, content in ((f"{n}.png", b"image"), (f"{n}.cls", label.encode())):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return bytearray(stream.getvalue())


def change(content, start, place, value):
    """Change a header and its checksum."""
    content[start + place : start + place + len(value)] = value
    content[start + 148 : start + 156] = b" " * 8
    content[start + 148 : start + 156] = b"%06o\0 " % sum(content[start : start + 512])


def keep(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(content))
    return path


@pytest.mark.parametrize(
    "pattern",
    ["{0..99999}{0..99999}.tar", "{a,b}" * 60, "{,}" * 25, "{0..999999999}", "{5..1}", "{0..1}" * 3000,
     "{0..9" + "9" * 5000 + "}", "{{0..9999},{0..9999}}{0..99}"],
)  # fmt: skip
def test_a_pattern_of_too_many_files_is_refused(pattern):
    with pytest.raises(UsageError, match="data"):
        expand(pattern)


def test_patterns_are_written_out_in_order():
    assert expand("{train,val}-{08..10}.tar") == [f"{s}-{n}.tar" for s in ("train", "val") for n in ("08", "09", "10")]
    assert expand("a{b,{c,d}}{}") == ["ab", "ac", "ab", "ad"]


@pytest.mark.parametrize("kind", [b"0", b"L", b"K", b"x", b"S"])
@pytest.mark.parametrize("size", [b"\xff" * 12, b"\xff" * 10 + b"\xfe\x00", b"\x80" + b"\xff" * 11])
def test_a_header_with_another_size_ends_the_reading(tmp_path, kind, size):
    content = shard()
    change(content, 2048, 156, kind)
    change(content, 2048, 124, size)
    with pytest.raises((MereoError, UsageError), match=r"a\.tar"):
        make_index(keep(tmp_path / "a.tar", content))


def test_a_damaged_header_does_not_end_the_archive_early(tmp_path):
    content = shard()
    content[2048 + 150] ^= 1
    with pytest.raises(MereoError, match="damaged"):
        make_index(keep(tmp_path / "a.tar", content))


def test_a_long_label_is_refused(tmp_path):
    with pytest.raises(UsageError, match="characters"):
        make_index(keep(tmp_path / "a.tar", shard(("0", "x" * 10**5))))


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "loop"])
@pytest.mark.parametrize("suffix", ["tar", "parquet", "arrow"])
def test_what_is_not_a_regular_file_is_refused(tmp_path, kind, suffix):
    odd = tmp_path / f"train.{suffix}"
    make = {
        "pipe": lambda: os.mkfifo(odd), "folder": odd.mkdir, "device": lambda: odd.symlink_to("/dev/zero"),
        "loop": lambda: odd.symlink_to(odd.name),
    }  # fmt: skip
    make[kind]()
    with pytest.raises(UsageError, match=r"data|path"):
        open_stream(tmp_path / f"*.{suffix}", tmp_path)
    if kind != "folder":
        with pytest.raises(UsageError, match=r"data|path"):
            open_stream(tmp_path, tmp_path)


def test_class_names_that_are_not_text_are_refused(tmp_path):
    keep(tmp_path / "train-0.tar", shard())
    keep(tmp_path / "classes.txt", b"\xff\n")
    with pytest.raises(MereoError, match="UTF-8"):
        open_stream(tmp_path, tmp_path)


@pytest.mark.parametrize("names", ["", "one\n"])
def test_class_names_that_are_too_few_are_refused(tmp_path, names):
    keep(tmp_path / "train-0.tar", shard())
    keep(tmp_path / "classes.txt", names.encode())
    with pytest.raises(UsageError, match="class names"):
        open_stream(tmp_path, tmp_path)


def test_metadata_of_any_depth_are_no_class_names(tmp_path):
    path = tmp_path / "train.arrow"
    table = pa.table({"image": [b"image"] * 8, "label": [0, 1] * 4})
    save_table(path, table.replace_schema_metadata({"huggingface": b"[" * 10**5}))
    with pytest.warns(UserWarning, match="no test split"):
        assert open_stream(path, tmp_path).class_names == ("0", "1")


def save_table(path, table):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
        return
    with ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize(
    "labels", [[], [None, 1], [[0.5], [0.5, 1.0]], [[True], [False]], [b"x", b"y"], ["a", "x" * 1000], [True, False]]
)
def test_labels_of_other_kinds_are_refused(tmp_path, suffix, labels):
    path = tmp_path / f"train.{suffix}"
    save_table(path, pa.table({"image": [b"image"] * len(labels), "label": labels}))
    with pytest.raises((UsageError, MereoError), match="train"):
        open_stream(path, tmp_path)


def test_a_table_of_more_rows_than_bytes_is_refused(tmp_path):
    path = tmp_path / "train.parquet"
    save_table(path, pa.table({"image": pa.array([b"a"] * 10**5).dictionary_encode(), "label": [0] * 10**5}))
    assert path.stat().st_size < 10**5
    with pytest.raises(MereoError, match="rows"):
        open_stream(path, tmp_path)


def test_a_cell_may_not_name_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    path = tmp_path / "train.parquet"
    cells = [{"bytes": None, "path": "pipe.png"}] * 8
    save_table(path, pa.table({"image": cells, "label": [0, 1] * 4}))
    with pytest.warns(UserWarning, match="no test split"):
        dataset = open_stream(path, tmp_path)
    with pytest.raises(OSError, match="regular"):
        dataset.splits["train"].open(0)


def test_damaged_offsets_of_arrow_do_not_end_the_process(tmp_path):
    path = tmp_path / "train.arrow"
    save_table(path, pa.table({"image": [b"image"] * 64, "label": list(range(64))}))
    content = path.read_bytes()
    offsets = np.arange(0, 5 * 65, 5, dtype=np.int32).tobytes()
    place = content.index(offsets)
    path.write_bytes(content[: place + 40] + b"\x7f" * 8 + content[place + 48 :])
    with pytest.raises(MereoError, match="cannot be read"):
        open_stream(path, tmp_path)


@pytest.mark.parametrize("name", ["", ".", "/", "..", "./here", "a/b/c", "a b", "\0", "x" * 5000, "~", "here"])
def test_a_name_of_the_hub_is_no_path(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    with pytest.raises(UsageError, match="data is"):
        open_hub(f"hf:{name}")


def test_a_run_describes_a_stream_without_its_unreadable_images(tmp_path):
    from PIL import Image

    from mereo.data.stream.streamed_set import StreamedSet
    from mereo.training.provenance import _readable

    good = io.BytesIO()
    Image.new("L", (4, 4), 90).save(good, "PNG")
    path = tmp_path / "train.parquet"
    save_table(path, pa.table({"image": [good.getvalue(), b"broken"] * 6, "label": [0, 1] * 6}))
    with pytest.warns(UserWarning, match="no test split"):
        source = open_stream(path, tmp_path).splits["train"]
    images = StreamedSet(source, ("0", "1"), (4, 4), 1)
    with pytest.warns(UserWarning, match="unreadable"):
        pieces = list(_readable(images, torch.arange(len(source)), 100))
    assert sum(len(batch.images) for _, batch in pieces) == int((source.labels == 0).sum())
    assert all((source.labels[places] == 0).all() for places, _ in pieces)
