"""Text as bytes: splits by name, windows that cover every byte once, shifts that are a function of a seed."""

from pathlib import Path

import pytest
import torch

from mereo.data import Augmentation, TokenWindows, dataset_info, load_split, load_splits
from mereo.data.text import join_files, read_path
from mereo.data.text_splits import SPLITS, split_of
from mereo.errors import UsageError
from mereo.training.provenance import data_changes, describe_data

STREAM = torch.arange(1, 24, dtype=torch.uint8)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_windows_predict_every_byte_once() -> None:
    windows = TokenWindows(STREAM, 5)
    assert len(windows) == 5 and windows.content == bytes(range(1, 24))
    batch = windows.batch(torch.arange(5))
    assert batch.images is None and batch.tokens is not None and batch.lengths is not None
    assert batch.tokens[0].tolist() == [0, 1, 2, 3, 4, 5]
    assert batch.tokens[1].tolist() == [5, 6, 7, 8, 9, 10]
    assert batch.tokens[4].tolist() == [20, 21, 22, 23, 0, 0]
    assert batch.lengths.tolist() == [6, 6, 6, 6, 4]
    targets = [t for row, n in zip(batch.tokens, batch.lengths, strict=True) for t in row[1:n].tolist()]
    assert targets == STREAM.tolist()
    assert windows.batch(torch.arange(4)).lengths is None


def test_training_windows_are_shifted_as_the_seed_says() -> None:
    windows, indices = TokenWindows(STREAM, 5), torch.arange(5)
    first, again, other = (windows.batch(indices, generator=generator(seed)).tokens for seed in (3, 3, 4))
    assert first is not None and other is not None and torch.equal(first, again) and not torch.equal(first, other)
    # Each is a run of the stream, within five bytes of its window, and never padded.
    for i, row in enumerate(first.tolist()):
        assert row == list(range(row[0], row[0] + 6)) and 5 * min(i, 3) <= row[0] <= 5 * i + 4 and row[-1] <= 23
    halves = [
        windows.batch(indices, generator=generator(3), share=share).tokens for share in (slice(0, 2), slice(2, 5))
    ]
    assert torch.equal(torch.cat([half for half in halves if half is not None]), first)


def test_a_stream_shorter_than_a_window() -> None:
    windows = TokenWindows(STREAM[:3], 5)
    for drawn in (None, generator(0)):
        batch = windows.batch(torch.arange(1), generator=drawn)
        assert batch.tokens is not None and batch.tokens.tolist() == [[0, 1, 2, 3, 0, 0]]
        assert batch.lengths is not None and batch.lengths.tolist() == [4]
    assert len(TokenWindows(STREAM[:0], 5)) == 0


def test_parts_of_the_windows() -> None:
    windows = TokenWindows(STREAM, 5)
    part = windows.subset(torch.tensor([3, 1]))
    assert len(part) == 2 and part.strata.tolist() == [0, 0]
    assert (
        part.content == bytes([16, 17, 18, 19, 20, 6, 7, 8, 9, 10]) and windows.subset(torch.arange(0)).content == b""
    )
    tokens = part.to("cpu").batch(torch.tensor([1])).tokens
    assert tokens is not None and tokens[0, 0] == 5
    with pytest.raises(UsageError, match=r"augment has .*leave it out"):
        windows.batch(torch.arange(2), augmentation=Augmentation.parse(("flip",)), generator=generator(0))
    for stream in (STREAM.long(), STREAM.view(1, -1)):
        with pytest.raises(UsageError, match=r"must be uint8 \(bytes,\)"):
            TokenWindows(stream, 5)


def test_splits_follow_from_names() -> None:
    names = [f"{i}.py" for i in range(2000)]
    shares = {split: sum(split_of(name) == split for name in names) / 2000 for split in SPLITS}
    assert shares["train"] == pytest.approx(0.9, abs=0.02) and shares["test"] == pytest.approx(0.05, abs=0.015)
    text = join_files((name, name.encode()) for name in names)
    assert bytes(text.splits["test"].tolist()).split(b"\0")[:-1] == [n.encode() for n in names if split_of(n) == "test"]
    other = join_files((name, b"x" if name == "7.py" else name.encode()) for name in names)
    assert text.digest == join_files((name, name.encode()) for name in names).digest != other.digest


def test_a_file_and_folders(tmp_path: Path) -> None:
    file = tmp_path / "book.txt"
    file.write_bytes(bytes(range(1, 101)))
    text = read_path(file)
    assert [len(text.splits[name]) for name in SPLITS] == [90, 5, 5] and text.splits["test"].tolist()[0] == 96
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(200):
        (folder / f"{i}.md").write_text(f"number {i}")
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0")
    (folder / ".hidden").write_text("no")
    divided = {name: bytes(part.tolist()) for name, part in read_path(folder).splits.items()}
    assert sum(part.count(b"number") for part in divided.values()) == 200
    assert not any(b"PNG" in part or b"no\0" in part for part in divided.values())
    assert divided["test"].split(b"\0")[0] == next(
        f"number {i}".encode() for i in sorted(range(200), key=str) if split_of(f"{i}.md") == "test"
    )
    few = tmp_path / "few"
    few.mkdir()
    (few / "a.txt").write_text("a" * 99)
    assert [len(read_path(few).splits[name]) for name in SPLITS] == [90, 5, 5]
    splits = load_splits(str(folder), length=64)
    assert dataset_info(str(folder), inputs="tokens").splits["train"] == len(divided["train"])
    assert dataset_info(str(folder), inputs="tokens").in_windows(64).splits["train"] == len(splits.train)
    assert len(load_splits(str(folder), length=64, limit=3).train) == 3


def test_what_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    for data, message in (
        ("digits", "data is 'digits', .*images.*pystdlib"),
        ("nothing/here", "no such data set, file or folder"),
        (str(tmp_path / "short.txt"), "with 5 bytes of text; it needs at least 20"),
        (str(tmp_path / "empty"), "with 0 bytes of text"),
    ):
        with pytest.raises(UsageError, match=message):
            load_splits(data, length=8)
    with pytest.raises(UsageError, match="length is 0"):
        load_splits("pystdlib", length=0)
    with pytest.raises(UsageError, match="split is 'tset'"):
        load_split("pystdlib", "tset", length=8)
    with pytest.raises(UsageError, match="'pystdlib', which is tokens"):
        load_splits("pystdlib", img_size=8)


def test_a_changed_text_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "book.txt"
    file.write_bytes(bytes(range(1, 101)))
    before = describe_data(load_splits(str(file), length=10))
    assert data_changes(before, describe_data(load_splits(str(file), length=10))) == ([], False)
    file.write_bytes(bytes(range(2, 102)))
    changes, _ = data_changes(before, describe_data(load_splits(str(file), length=10)))
    assert len(changes) == 1 and "test: bytes differ" in changes[0]
    assert data_changes(before, describe_data(load_splits(str(file), length=9)))[0]
