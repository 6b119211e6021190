"""The same few pictures as a folder, tar files, tables and a CSV."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sources import NAMES, encoded


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path) -> Path:
    """24 pictures to train on and 9 to test on, three classes."""
    root = tmp_path / "folder"
    for split, count in (("train", 8), ("test", 3)):
        for label, name in enumerate(NAMES):
            place = root / split / name
            place.mkdir(parents=True)
            for index in range(count):
                (place / f"{index:03d}.png").write_bytes(encoded(1000 * (split == "test") + 100 * label + index))
    return root


@pytest.fixture
def make_tar(tmp_path) -> Callable[..., Path]:
    """make_tar("a.tar", {"0.png": b"...", "0.cls": b"1"})"""

    def make(name: str, members: dict[str, bytes]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w") as archive:
            for member, content in members.items():
                about = tarfile.TarInfo(member)
                about.size = len(content)
                archive.addfile(about, io.BytesIO(content))
        return path

    return make
