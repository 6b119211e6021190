"""Zip archives of images: bombs, names that lead elsewhere, damaged directories."""

import contextlib
import io
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mereo.data import load_splits
from mereo.errors import MereoError, UsageError
from pictures import picture


def png(seed: int) -> bytes:
    stream = io.BytesIO()
    picture(seed).save(stream, "PNG")
    return stream.getvalue()


IMAGES = {f"train/{kind}/{i}.png": png(i) for kind in ("cat", "dog") for i in range(3)}


def packed(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that occur twice
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


def read(content: bytes, **options):
    Path("images.zip").write_bytes(content)
    with warnings.catch_warnings(record=True) as message:
        warnings.simplefilter("always")
        splits = load_splits("images.zip", img_size=8, validation_fraction=0, **options)
    return splits, " ".join(str(w.message) for w in message)


def claim(content: bytes, member: str, size: int) -> bytes:
    """The archive with another unpacked size of a member in its directory."""
    start = content.rindex(member.encode()) - 46
    assert content[start : start + 4] == b"PK\x01\x02"
    return content[: start + 24] + size.to_bytes(4, "little") + content[start + 28 :]


def test_a_member_of_a_huge_stated_size_is_refused():
    bomb = claim(packed({**IMAGES, "train/cat/bomb.png": png(9)}), "train/cat/bomb.png", 2**31 - 1)
    splits, message = read(bomb)
    assert "train/cat/bomb.png (it unpacks to 2147483647 bytes, more than the limit" in message
    assert splits.skipped == 1


def test_a_member_that_hides_its_size_is_cut_there():
    bomb = claim(packed({**IMAGES, "train/cat/bomb.png": bytes(1 << 24)}), "train/cat/bomb.png", 60)
    splits, message = read(bomb)
    assert "train/cat/bomb.png (" in message and splits.skipped == 1


def test_a_bomb_of_permitted_size_is_not_unpacked(monkeypatch):
    bomb = packed({**IMAGES, **{f"train/cat/bomb{i}.png": bytes(1 << 26) for i in range(4)}})
    read(packed(IMAGES))  # what a first reading imports is not counted
    unpacked = []
    unpack = zipfile.ZipExtFile._read1

    def counted(member, length):
        content = unpack(member, length)
        unpacked.append(len(content))
        return content

    monkeypatch.setattr(zipfile.ZipExtFile, "_read1", counted)
    tracemalloc.start()
    splits, message = read(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert splits.skipped == 4 and "bomb3.png (not an image)" in message
    assert peak < 1 << 24 and 0 < sum(unpacked) < 1 << 24, "zeros were unpacked to see that they are no image"


@pytest.mark.parametrize(
    "name", ["../outside.png", "/outside.png", "train/../../outside.png", "..\\outside.png", "C:/outside.png"]
)
def test_names_that_lead_elsewhere_write_nothing(tmp_path, name):
    before = sorted(tmp_path.rglob("*"))
    with contextlib.suppress(UsageError):
        read(packed({**IMAGES, name: png(9), f"train/cat/{name}": png(9)}))
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "here" / "images.zip"])


def test_an_archive_in_an_archive_is_no_image():
    splits, message = read(
        packed({**IMAGES, "train/dog/more.zip": packed(IMAGES), "train/dog/more.png": packed(IMAGES)})
    )
    assert "more.zip (not an image)" in message and "more.png (not an image)" in message and splits.skipped == 2


def test_an_encrypted_member_is_named():
    content = bytearray(packed(IMAGES))
    start = content.index(b"train/dog/0.png") - 30
    for flags in (start + 6, content.rindex(b"train/dog/0.png") - 46 + 8):
        content[flags] |= 1
    splits, message = read(bytes(content))
    assert "train/dog/0.png (" in message and "password" in message and splits.skipped == 1


def test_an_archive_of_other_things_is_refused():
    for content in (packed({}), packed({"notes.txt": b"none"}), packed({"a/b.png": b"", "c/d.png": b""})):
        with pytest.raises((UsageError, MereoError), match="images"):
            read(content)


DIRECTORY = {
    "a name that is no text": lambda head: head[:9] + b"\x08" + head[10:46] + b"\xff" + head[47:],
    "a version to come": lambda head: head[:6] + b"\xff\x00" + head[8:],
    "a method to come": lambda head: head[:10] + b"\xee\x00" + head[12:],
    "a member before the archive": lambda head: head[:42] + b"\xff\xff\xff\x7f" + head[46:],
}


@pytest.mark.parametrize("fault", DIRECTORY)
def test_a_damaged_directory_is_reported(fault):
    content = packed(IMAGES)
    start = content.index(b"PK\x01\x02")
    try:
        _, message = read(content[:start] + DIRECTORY[fault](content[start : start + 60]) + content[start + 60 :])
    except MereoError as error:
        message = str(error)
    assert "images.zip" in message and ("cannot be read" in message or "could not be read" in message)


WHOLE = packed(IMAGES), packed(IMAGES, zipfile.ZIP_STORED)


@st.composite
def damaged(draw):
    content = bytearray(draw(st.sampled_from(WHOLE)))
    directory = content.index(b"PK\x01\x02")
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.one_of(st.integers(0, len(content) - 1), st.integers(directory, len(content) - 1)))
        content[place] ^= 1 << draw(st.integers(0, 7))
    return bytes(content[: draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))])


@given(content=damaged())
@settings(max_examples=200, derandomize=True, deadline=None, database=None)
def test_a_damaged_archive_is_read_in_part_or_refused(content):
    try:
        splits, _ = read(content)
    except (UsageError, MereoError) as error:
        assert len(str(error)) > 20
    else:
        assert len(splits.train) + len(splits.test) + splits.skipped <= len(IMAGES)
